// Elements. Text is only ever set as text: what agents and models wrote is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`on...` listens, true is an empty attribute, null and false are left out) and children. */
export function el(tag, attributes = {}, ...children) {
  return made(document.createElement(tag), attributes, children);
}

/** The same inside a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace what is in an element. */
export function fill(host, ...children) {
  host.replaceChildren(...children.flat(4).filter((each) => each !== null && each !== undefined && each !== false));
  return host;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Say something to those who listen to the page. */
export function announce(text) {
  byId("said").textContent = text;
}

/** Names with their colours; entries [class, name]. */
export function legend(host, entries) {
  fill(host, entries.map(([kind, name]) => el("li", {}, el("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), name)));
}

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(4).filter((each) => each !== null && each !== undefined && each !== false));
  return node;
}
