"""Settings: one TOML file, environment and flags; refused when wrong, taken over while running."""

import json
import re
import time

import pytest

from catalogue import AGENT_ACTION, AI_TASK_RETRY, CAPTURE, CIRCUIT_CHECK, CIRCUIT_RECORD, HANDOFF, KB_BOTPRESS, \
    KB_CHECK, KB_RECORD, NO_MATCH
from runguard_http import subset
from runguard_process import ServerDidNotStart, run_cli

RELOAD_SECONDS = 15


def eventually(condition, what: str):
    """Polls until the running server has taken a file over."""
    deadline = time.monotonic() + RELOAD_SECONDS
    while not (outcome := condition()):
        assert time.monotonic() < deadline, f"not after {RELOAD_SECONDS} s: {what}"
        time.sleep(0.05)
    return outcome


def handoffs_allowed(flow, session: str) -> int:
    """How many different bots a fresh session may be handed to."""
    for number in range(50):
        response = flow.post(HANDOFF, {"session_id": session, "source_bot": "x", "target_bot": f"bot-{number}"})
        if response.status == 429:
            return number
    raise AssertionError("no ceiling within 50")


# -- the command ----------------------------------------------------------------------------------


def test_the_example_passes_its_own_check(tmp_path):
    example = run_cli("settings", "example")
    assert example.returncode == 0, example
    file = tmp_path / "example.toml"
    file.write_text(example.stdout)
    checked = run_cli("settings", "check", file)
    assert checked.returncode == 0, checked


def test_the_example_names_every_default(tmp_path):
    text = run_cli("settings", "example").stdout
    for guard in ("ai_task_retry", "handoff", "kb_requery", "agent_action", "no_match_reprompt", "capture_slot_fill",
                  "api_circuit"):
        assert guard in text
    for key in ("max_retries", "max_handoffs", "max_visits_per_bot", "confidence_threshold", "low_confidence",
                "max_total", "max_consecutive", "max_same", "max_reprompts", "max_attempts", "max_hints",
                "failure_threshold", "recovery", "probe_timeout", "store_text", "retention_days"):
        assert key in text, key


def uncommented_example() -> str:
    """The example with every default it shows written out as a setting."""
    return re.sub(r"^# ([\w.\"]+ = .*|\[.*\])$", r"\1", run_cli("settings", "example").stdout, flags=re.M)


def test_every_default_that_the_example_shows_is_a_valid_setting(tmp_path):
    text = uncommented_example()
    assert text.count("max_") > 20
    file = tmp_path / "all.toml"
    file.write_text(text)
    checked = run_cli("settings", "check", file)
    assert checked.returncode == 0, checked


def test_defaults_written_out_change_nothing(tmp_path):
    file = tmp_path / "all.toml"
    file.write_text(uncommented_example())

    def shown(*arguments):
        rows = json.loads(run_cli("settings", "show", "--json", *arguments, cwd=tmp_path).stdout)
        return {row["key"]: row["value"] for row in rows}

    written, default = shown("--config", file), shown()
    assert len(default) > 40
    assert {key: written[key] for key in default} == default


def test_a_server_started_from_the_example_behaves_as_one_without_a_file(serve):
    flow = serve(config=run_cli("settings", "example").stdout).client()
    assert handoffs_allowed(flow, "s") == 6


WRONG = [
    ("unknown key", "[guards.handoff]\nmax_handofs = 6\n", "max_handofs", 2),
    ("unknown guard", "\n\n[guards.handover]\nmax_handoffs = 6\n", "handover", 3),
    ("unknown section", "# notes\n[guard]\n", "guard", 2),
    ("unknown rule", '[guards.handoff.rules]\ncycle = "observe"\n', "cycle", 2),
    ("unknown override key", '[guards.handoff.bots.billing]\nmax_visits = 9\n', "max_visits", 2),
    ("negative", "[guards.handoff]\nmax_visits_per_bot = 2\nmax_handoffs = -1\n", "max_handoffs", 3),
    ("wrong type", '[guards.ai_task_retry]\nmax_retries = "three"\n', "max_retries", 2),
    ("window of zero", "[guards.ai_task_retry]\nwindow = 0\n", "window", 2),
    ("window of nonsense", '[guards.ai_task_retry]\nwindow = "1 fortnight"\n', "window", 2),
    ("confidence over one", "[guards.kb_requery.botpress]\nconfidence_threshold = 1.5\n", "confidence_threshold", 2),
    ("unknown mode", '[guards.handoff]\nmode = "maybe"\n', "mode", 2),
    ("unknown rule mode", '[guards.handoff.rules]\ncycle_detected = "perhaps"\n', "cycle_detected", 2),
    ("broken pattern", '[guards.ai_task_retry.patterns]\nx = "(unclosed"\n', "x", 2),
    ("no probes", "[guards.api_circuit]\nprobes = 0\n", "probes", 2),
    ("rate over one", "[guards.api_circuit]\nfailure_rate = 2.0\n", "failure_rate", 2),
    ("backoff under one", "[guards.api_circuit]\nrecovery_backoff = 0.5\n", "recovery_backoff", 2),
    ("unknown topic match", '[guards.kb_requery.voiceflow]\ntopic_match = "fuzzy"\n', "topic_match", 2),
    ("unknown store_text", '[log]\nstore_text = "some"\n', "store_text", 2),
    ("wrong key of a tenant", "[tenants.acme.guards.handoff]\nmax_hands = 6\n", "max_hands", 2),
]


@pytest.mark.parametrize("content, key, line", [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_check_names_the_wrong_key_and_its_line(tmp_path, content, key, line):
    file = tmp_path / "wrong.toml"
    file.write_text(content)
    checked = run_cli("settings", "check", file)
    said = checked.stdout + checked.stderr
    assert checked.returncode not in (0, 101), checked
    assert key in said, said
    assert f"line {line}" in said or f":{line}" in said, said
    assert "panicked" not in said


def test_check_names_the_line_of_broken_toml(tmp_path):
    file = tmp_path / "broken.toml"
    file.write_text("[guards.handoff]\nmax_handoffs = 6\nmax_visits_per_bot = = 2\n")
    checked = run_cli("settings", "check", file)
    assert checked.returncode not in (0, 101)
    assert "line 3" in checked.stdout + checked.stderr or ":3" in checked.stdout + checked.stderr


def test_check_of_a_missing_file(tmp_path):
    checked = run_cli("settings", "check", tmp_path / "nowhere.toml")
    assert checked.returncode not in (0, 101)
    assert "nowhere.toml" in checked.stderr


def test_the_server_refuses_a_wrong_file_at_start(serve):
    with pytest.raises(ServerDidNotStart) as refused:
        serve(config="[guards.handoff]\nmax_handofs = 6\n")
    assert refused.value.exit_code not in (0, 101)
    assert "max_handofs" in refused.value.log
    assert "line 2" in refused.value.log or ":2" in refused.value.log


def test_show_tells_each_value_and_where_it_came_from(tmp_path):
    file = tmp_path / "runguard.toml"
    file.write_text("[guards.handoff]\nmax_visits_per_bot = 5\n")
    shown = run_cli("settings", "show", "--config", file, env={"RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS": "8"})
    assert shown.returncode == 0, shown
    lines = [line for line in shown.stdout.splitlines() if "handoff" in line or "max_" in line]
    [visits] = [line for line in lines if "max_visits_per_bot" in line]
    [handoffs] = [line for line in lines if "max_handoffs" in line]
    [retries] = [line for line in shown.stdout.splitlines() if "max_retries" in line]
    assert "5" in visits and "runguard.toml" in visits
    assert "8" in handoffs and ("env" in handoffs.lower() or "RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS" in handoffs)
    assert "2" in retries and "default" in retries


# -- thresholds -----------------------------------------------------------------------------------


def test_thresholds_and_windows_from_the_file(serve):
    flow = serve(config='[guards.ai_task_retry]\nmax_retries = 3\nwindow = "10m"\n').client()
    for _ in range(3):
        flow.at(0).allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
    refused = flow.at(1).refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="classify")
    assert subset(refused, "cap", "retry_after_seconds") == {"cap": 3, "retry_after_seconds": 599}
    flow.at(599.999).refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="classify")
    flow.at(600).allowed(AI_TASK_RETRY, session_id="s", task_name="classify")


@pytest.mark.parametrize("window, seconds", [("3600", 3600), ('"1h"', 3600), ('"90s"', 90), ('"2m"', 120), ('"1d"', 86_400)])
def test_windows_are_seconds_or_say_their_unit(serve, window, seconds):
    flow = serve(config=f"[guards.ai_task_retry]\nmax_retries = 1\nwindow = {window}\n").client()
    flow.at(0).allowed(AI_TASK_RETRY, session_id="s", task_name="t")
    flow.at(seconds - 0.001).refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="t")
    flow.at(seconds).allowed(AI_TASK_RETRY, session_id="s", task_name="t")


def test_the_environment_outranks_the_file(serve):
    flow = serve(config="[guards.handoff]\nmax_handoffs = 3\n",
                 environment={"RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS": "8"}).client()
    assert handoffs_allowed(flow, "s") == 8


def test_a_wrong_environment_variable_is_refused(serve):
    with pytest.raises(ServerDidNotStart) as refused:
        serve(environment={"RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFS": "8"})
    assert "RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFS" in refused.value.log or "max_handofs" in refused.value.log.lower()


def test_variables_of_the_command_line_do_not_disturb_the_server(serve):
    """RUNGUARD_URL and RUNGUARD_KEY belong to `runguard decisions` and are often set for a whole shell."""
    serve(environment={"RUNGUARD_URL": "http://127.0.0.1:1", "RUNGUARD_KEY": "rg_x_y"})


OVERRIDES = [
    ("[guards.ai_task_retry.tasks.patient]\nmax_retries = 1\n", AI_TASK_RETRY, "task_name", {}, 1, 2),
    ("[guards.handoff.bots.patient]\nmax_visits_per_bot = 1\n", HANDOFF, "target_bot", {"source_bot": "x"}, 1, 2),
    ("[guards.kb_requery.botpress.topics.patient]\nmax_queries = 1\n", KB_BOTPRESS, "topic_hash", {}, 1, 2),
    ("[guards.agent_action.actions.patient]\nmax_consecutive = 1\n", AGENT_ACTION, "action_name", {}, 1, 3),
    ("[guards.no_match_reprompt.steps.patient]\nmax_reprompts = 1\n", NO_MATCH, "step_id", {}, 1, 3),
    ("[guards.capture_slot_fill.steps.patient]\nmax_attempts = 1\n", CAPTURE, "capture_step", {"entity_type": "x"}, 1, 4),
]


@pytest.mark.parametrize("config, path, subject, more, special, usual", OVERRIDES, ids=[row[1] for row in OVERRIDES])
def test_an_override_holds_for_its_subject_only(serve, config, path, subject, more, special, usual):
    flow = serve(config=config).client()

    def allowed(name):
        for number in range(10):
            if flow.post(path, {"session_id": f"session of {name}", subject: name, **more}).status == 429:
                return number

    assert (allowed("patient"), allowed("usual")) == (special, usual)


def test_the_doors_of_the_knowledge_base_have_settings_of_their_own(serve):
    flow = serve(config="[guards.kb_requery.botpress]\nmax_queries = 1\nconfidence_threshold = 0.6\nwindow = 60\n"
                        "[guards.kb_requery.voiceflow]\nmax_queries = 3\nlow_confidence = 0.2\nwindow = 120\n").client()
    flow.at(0).allowed(KB_BOTPRESS, session_id="s", topic_hash="t")
    assert flow.at(1).refused(KB_BOTPRESS, "kb_requery_cap_reached", session_id="s", topic_hash="t")["cap"] == 1
    flow.at(1).refused(KB_BOTPRESS, "confidence_already_met", session_id="s", topic_hash="u", last_confidence=0.6)
    flow.at(60).allowed(KB_BOTPRESS, session_id="s", topic_hash="t")

    for number in range(1, 4):
        assert flow.at(100).allowed(KB_CHECK, session_id="s", query="refunds")["query_number"] == number
        flow.at(100).recorded(KB_RECORD, session_id="s", query="refunds", confidence_score=0.25, retrieved_chunks=1)
    flow.at(219).refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query="refunds")
    flow.at(220).allowed(KB_CHECK, session_id="s", query="refunds")


def test_patterns_of_ones_own(serve):
    flow = serve(config="[guards.ai_task_retry.patterns]\nextract_iban = '''\\b[A-Z]{2}\\d{2}'''\n"
                        "[guards.no_match_reprompt.patterns]\ncapture_size = '''(?i)\\b(s|m|l|xl)\\b'''\n").client()
    flow.refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", session_id="s", task_name="extract_iban",
                 user_message="my account")
    flow.allowed(AI_TASK_RETRY, session_id="s", task_name="extract_iban", user_message="DE44 5001")
    flow.refused(NO_MATCH, "entity_signal_absent", session_id="s", step_id="capture_size", user_utterance="huge")
    flow.allowed(NO_MATCH, session_id="s", step_id="capture_size", user_utterance="XL please")
    # the built-in ones stay
    flow.refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", session_id="s", task_name="extract_date")


def test_entities_of_ones_own(serve):
    flow = serve(config="[guards.capture_slot_fill.entities.plate]\nmachine = '''[A-Z]{2}-\\d{4}'''\n"
                        "colloquial = '''(?i)dash'''\nhint = 'Like AB-1234'\n").client()
    plate = {"session_id": "s", "capture_step": "ask", "entity_type": "plate"}
    refused = flow.refused(CAPTURE, "colloquial_format_detected", **plate, user_utterance="A B dash twelve")
    assert refused["format_hint"] == "Like AB-1234"
    assert flow.allowed(CAPTURE, **plate, user_utterance="AB-1234")["classification"] == "machine_format_extraction_failure"


# -- modes ----------------------------------------------------------------------------------------


def test_a_guard_that_observes_lets_pass_and_says_so(serve):
    flow = serve(config='[guards.ai_task_retry]\nmode = "observe"\n').client()
    for _ in range(2):
        assert not flow.allowed(AI_TASK_RETRY, session_id="s", task_name="t").get("would_block")
    third = flow.allowed(AI_TASK_RETRY, session_id="s", task_name="t")
    assert subset(third, "allow", "would_block", "reason") == {
        "allow": True, "would_block": True, "reason": "retry_cap_reached",
    }


def test_observing_keeps_both_names_of_the_answer_equal(serve):
    flow = serve(config='[guards.capture_slot_fill]\nmode = "observe"\n').client()
    answer = flow.allowed(CAPTURE, session_id="s", capture_step="ask", entity_type="email",
                          user_utterance="john at example dot com")
    assert subset(answer, "allow", "allow_ai_response", "would_block", "reason") == {
        "allow": True, "allow_ai_response": True, "would_block": True, "reason": "colloquial_format_detected",
    }


def test_a_guard_that_is_off_refuses_nothing(serve):
    flow = serve(config='[guards.handoff]\nmode = "off"\n').client()
    for _ in range(20):
        answer = flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot="b")
        assert not answer.get("would_block")


def test_one_rule_observes_and_the_others_enforce(serve):
    flow = serve(config='[guards.handoff.rules]\ncycle_detected = "observe"\n').client()
    for _ in range(2):
        flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot="b")
    third = flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot="b")
    assert subset(third, "would_block", "reason") == {"would_block": True, "reason": "cycle_detected"}
    for number in range(3):
        flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot=f"bot-{number}")
    flow.refused(HANDOFF, "handoff_ceiling_reached", session_id="s", source_bot="a", target_bot="new")


def test_one_rule_is_off_and_the_others_enforce(serve):
    flow = serve(config='[guards.handoff.rules]\ncycle_detected = "off"\n').client()
    for _ in range(6):
        answer = flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot="b")
        assert not answer.get("would_block")
    flow.refused(HANDOFF, "handoff_ceiling_reached", session_id="s", source_bot="a", target_bot="b")


def test_a_rule_that_observes_does_not_hide_a_later_one_that_enforces(serve):
    flow = serve(config='[guards.handoff.rules]\nhandoff_ceiling_reached = "observe"\n').client()
    for bot in "abcabc":
        flow.allowed(HANDOFF, session_id="s", source_bot="x", target_bot=bot)
    over = flow.allowed(HANDOFF, session_id="s", source_bot="x", target_bot="d")
    assert subset(over, "would_block", "reason") == {"would_block": True, "reason": "handoff_ceiling_reached"}
    flow.refused(HANDOFF, "cycle_detected", session_id="s", source_bot="x", target_bot="a")


def test_an_observed_circuit_lets_pass(serve):
    flow = serve(config='[guards.api_circuit]\nmode = "observe"\nfailure_threshold = 1\n').client()
    flow.recorded(CIRCUIT_RECORD, endpoint_key="e", session_id="s", attempt=1, outcome="failure")
    answer = flow.allowed(CIRCUIT_CHECK, endpoint_key="e", session_id="t")
    assert answer["would_block"] is True


# -- while it runs --------------------------------------------------------------------------------


def test_a_changed_file_is_taken_over(serve):
    server = serve(config="[guards.handoff]\nmax_handoffs = 3\n")
    flow = server.client()
    assert handoffs_allowed(flow, "before") == 3
    server.config_file.write_text("[guards.handoff]\nmax_handoffs = 5\n")
    attempt = iter(range(10_000))
    eventually(lambda: handoffs_allowed(flow, f"after-{next(attempt)}") == 5, "the new ceiling of 5")


def test_a_file_replaced_by_rename_is_taken_over(serve):
    """How editors and configuration management write a file."""
    server = serve(config="[guards.handoff]\nmax_handoffs = 3\n")
    new = server.config_file.with_suffix(".new")
    for ceiling in (4, 5):
        new.write_text(f"[guards.handoff]\nmax_handoffs = {ceiling}\n")
        new.rename(server.config_file)
        attempt = iter(range(10_000))
        eventually(lambda: handoffs_allowed(server.client(), f"{ceiling}-{next(attempt)}") == ceiling,
                   f"the new ceiling of {ceiling}")


def test_a_bad_new_file_is_refused_and_the_old_one_stays(serve):
    server = serve(config="[guards.handoff]\nmax_handoffs = 3\n")
    server.config_file.write_text("[guards.handoff]\nmax_handofs = 5\n")
    eventually(lambda: "max_handofs" in server.log(), "an error in the log that names the key")
    assert handoffs_allowed(server.client(), "still") == 3
    server.config_file.write_text("[guards.handoff]\nmax_handoffs = 4\n")
    attempt = iter(range(10_000))
    eventually(lambda: handoffs_allowed(server.client(), f"mended-{next(attempt)}") == 4, "the mended file")


def test_a_file_that_comes_later_is_taken_over(serve):
    server = serve()
    assert handoffs_allowed(server.client(), "before") == 6
    late = server.folder / "runguard.toml"
    late.write_text("[guards.handoff]\nmax_handoffs = 3\n")
    attempt = iter(range(10_000))
    eventually(lambda: handoffs_allowed(server.client(), f"after-{next(attempt)}") == 3, "the file that came")
    late.write_text("")
    eventually(lambda: "needs a restart for that" in server.log(), "advice that can be followed")
    late.unlink()
    eventually(lambda: "cannot read the settings file" in server.log(), "that it is gone")
    assert handoffs_allowed(server.client(), "still") == 3


def test_the_example_says_of_each_key_whether_it_needs_a_restart(tmp_path):
    example = run_cli("settings", "example").stdout
    said = {key: about.endswith("(Needs a restart.)") for about, key in re.findall(r"^# (.+)\n# (\w+) = ", example, re.M)}
    assert said["listen"] and said["memory_mb"] and not said["hosts"] and not said["requests_per_second_per_key"]
    assert "[savings] and log.store_text" not in example


def test_counts_survive_a_change_of_settings(serve):
    server = serve(config="[guards.ai_task_retry]\nmax_retries = 2\n")
    flow = server.client()
    for _ in range(2):
        flow.allowed(AI_TASK_RETRY, session_id="s", task_name="t")
    flow.refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="t")
    server.config_file.write_text("[guards.ai_task_retry]\nmax_retries = 3\n")
    eventually(lambda: flow.post(AI_TASK_RETRY, {"session_id": "s", "task_name": "t"}).status == 200, "one more slot")
    assert flow.refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="t")["retries_in_window"] == 3


def test_settings_of_a_tenant(serve, tmp_path):
    server = serve(config="[tenants.acme.guards.handoff]\nmax_handoffs = 2\n", start=False)
    keys = {}
    for tenant in ("acme", "other"):
        made = run_cli("key", "create", "--data", server.data, "--tenant", tenant, "--role", "guard")
        assert made.returncode == 0, made
        keys[tenant] = made.stdout.split()[-1]
    server.start()
    assert handoffs_allowed(server.client(key=keys["acme"]), "s") == 2
    assert handoffs_allowed(server.client(key=keys["other"]), "s") == 6
