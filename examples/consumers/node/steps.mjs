// A consumer in another language: the messages are JSON, and docs/events says what may stand in them.
//
//   cd examples/consumers/node && npm ci
//   gyre attach --exec "node examples/consumers/node/steps.mjs docs/events" demo
//
// Checks every event against the schema of its type and version, and prints each optimizer step, and at the end what it counted. It
// may ask the server for its next messages, and nothing else, so it asks as the protocol does and makes no consumer.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { env, exit, stderr } from "node:process";
import Ajv from "ajv/dist/2020.js";
import { connect, createInbox } from "nats";

const BATCH = 100;
const WAIT_NS = 5_000_000_000;

const folder = process.argv[2];
const ajv = new Ajv({ strict: false, validateFormats: false });
const schemas = readdirSync(folder)
  .filter((name) => name.endsWith(".json") && name !== "asyncapi.json")
  .map((name) => [name.slice(0, -5), JSON.parse(readFileSync(join(folder, name), "utf8"))]);
const checks = new Map(schemas.map(([type, schema]) => [`${type} ${schema.properties.v.const}`, ajv.compile(schema)]));

let after = Number(env.GYRE_AFTER);
const until = Number(env.GYRE_UNTIL || 0);
let wanted = 0;
let events = 0;
let checked = 0;
let invalid = 0;

const connection = await connect({
  servers: env.GYRE_NATS_URL.replace("nats://", ""),
  user: env.GYRE_NATS_USER,
  pass: env.GYRE_NATS_PASSWORD,
  inboxPrefix: env.GYRE_INBOX,
});
const inbox = createInbox(env.GYRE_INBOX);
const ask = `$JS.API.CONSUMER.MSG.NEXT.${env.GYRE_STREAM}.${env.GYRE_CONSUMER}`;

function more() {
  wanted = BATCH;
  connection.publish(ask, JSON.stringify({ batch: BATCH, expires: WAIT_NS }), { reply: inbox });
}

// $JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE..., or with a domain and an account before the stream.
function sequenceOf(reply) {
  const tokens = reply.split(".");
  return Number(tokens.length === 9 ? tokens[5] : tokens[7]);
}

function handle(sequence, commit) {
  let last = sequence === until;
  for (const event of commit.events ?? []) {
    events += 1;
    const check = checks.get(`${event.type} ${event.v}`); // an older version is described by nobody any more
    if (check) checked += 1;
    if (check && !check(event)) {
      invalid += 1;
      stderr.write(`${sequence}: ${event.type}: ${ajv.errorsText(check.errors)}\n`);
    }
    if (event.type === "OptimizerStepped") console.log(sequence, event.step, event.seconds);
    if (event.type === "RunFinished") last = true;
  }
  return last;
}

if (!until || after < until) {
  const answers = connection.subscribe(inbox);
  more();
  for await (const message of answers) {
    if (!message.reply) {
      more();
      continue;
    }
    const sequence = sequenceOf(message.reply);
    if (sequence > after + 1) {
      stderr.write(`gap: expected ${after + 1}, found ${sequence}; attach again with --from ${after + 1}\n`);
      exit(1);
    }
    if (sequence === after + 1) {
      after = sequence;
      if (handle(sequence, message.json())) break;
    }
    wanted -= 1;
    if (wanted === 0) more();
  }
}
console.log(`${events} events, ${checked} checked, ${invalid} invalid`);
await connection.close();
exit(invalid ? 1 : 0);
