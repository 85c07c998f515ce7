"""What `make test-harnesses` is told hangs together; the clients themselves are not run here."""

from pathlib import Path

import pytest

from tests.clients.run import Case, Result, clients, expected, read, told
from tests.clients.script import REPORT, SIDE, TASK, Script

CLIENTS, SCENARIOS = clients(), read("scenarios")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_case_has_a_command_on_the_page_and_a_tree_or_a_reason_to_be_skipped(
    client: str, scenario: str, tmp_path: Path
) -> None:
    case = Case(client, scenario, Script(CLIENTS[client], SCENARIOS[scenario]), tmp_path, {})
    assert CLIENTS[client]["command"] in case.command()[-1]
    tree = expected(client).get(scenario)
    assert (tree is None) == (scenario in CLIENTS[client].get("skip", {}))
    assert tree is None or tree["final"] in tree["leaves"]


def test_the_policy_says_the_first_step_whose_result_is_missing_and_ends_after_the_last() -> None:
    script = Script(CLIENTS["opencode"], SCENARIOS["sub-agent"])
    handing, looking = script.turn(TASK).said, script.turn(f"{TASK} {REPORT}").said
    assert [tool.name for tool in handing.tools + looking.tools] == ["task", "bash"]
    assert script.turn(f"{TASK} {REPORT} beta-42").said.tools == ()
    prompt = f"{SIDE}: write b.txt and report."
    assert "b.txt" in script.turn(prompt).said.tools[0].arguments
    assert script.turn(f"{prompt} side-42").said.text == REPORT


def test_a_summary_tells_what_is_done_and_no_more() -> None:
    script = Script(CLIENTS["codex"], SCENARIOS["compaction"])
    said = script.turn(f"{TASK} made-42 CONTEXT CHECKPOINT COMPACTION").said.text
    assert script.turn(said).said.tools == script.turn(f"{TASK} made-42").said.tools
    assert "more-42" not in said


def test_an_agent_in_the_background_is_waited_for_by_its_id() -> None:
    script = Script(CLIENTS["codex"], SCENARIOS["sub-agent"])
    (tool,) = script.turn(TASK + '{"agent_id":"a1"}').said.tools
    assert (tool.name, '["a1"]' in tool.arguments) == ("wait_agent", True)


def test_the_table_says_why_something_failed_or_was_skipped() -> None:
    table = told([Result("a", "tools", "fail", "no file"), Result("b", "tools", "skipped", "no npm")])
    assert "a                           fail" in table
    assert "b skipped: no npm [tools]" in table
