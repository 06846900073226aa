"""`runguard demo` and `runguard estimate` as processes: what they print, how they end, what they leave behind."""

import json
import re
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from runguard_process import REPOSITORY, binary, clean_environment, run_cli

SCENARIOS = json.loads(run_cli("demo", "--list", "--json").stdout)["scenarios"]
# Reasons that no traffic can bring about: the demo shares its states with nobody, and no run in it is as long as a long one.
CANNOT_OCCUR = {"state_unavailable", "run_stopped", "stalled_long_run", "not_metered"}


def all_reasons() -> set[str]:
    """The guards' codes of docs/reasons.md, which is made from the code. A guard's have a mode, a run's have none."""
    return set(re.findall(r"^\| `([a-z_]+)` \|.*\| (?:enforce|observe) \|$", (REPOSITORY / "docs" / "reasons.md").read_text(), re.M))


def demo(*arguments, tmp_path, timeout=90):
    return run_cli("demo", "--no-open", "--port", "0", *arguments, cwd=tmp_path, timeout=timeout, env={"TMPDIR": str(tmp_path)})


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Three seconds with everything in it, also what comes only if it is named."""
    folder = tmp_path_factory.mktemp("demo")
    everything = ",".join(scenario["name"] for scenario in SCENARIOS)
    shown = demo("--seconds", "3", "--json", "--history", "1d", "--scenario", everything, tmp_path=folder)
    assert shown.returncode == 0, shown
    return json.loads(shown.stdout), shown, folder


def test_every_reason_of_every_guard_is_seen(short):
    result, _, _ = short
    promised = {reason for scenario in SCENARIOS for reason in scenario["reasons"]}
    assert set(result["total"]["reasons"]) == promised
    assert promised == all_reasons() - CANNOT_OCCUR and len(promised) >= 35


def test_every_scenario_hears_only_its_own_reasons(short):
    result, _, _ = short
    for scenario in SCENARIOS:
        seen = result["scenarios"][scenario["name"]]
        assert set(seen["reasons"]) == set(scenario["reasons"]), scenario["name"]


def test_healthy_conversations_are_left_alone(short):
    result, _, _ = short
    healthy = result["scenarios"]["healthy"]
    assert healthy["asked"] > 0 and healthy["blocked"] == healthy["would_block"] == healthy["false_stops"] == 0
    assert healthy["operations_without_guard"] == healthy["operations_with_guard"]
    assert result["total"]["false_stops"] == result["history"]["false_stops"] == 0


def test_the_books_balance(short):
    result, _, _ = short
    parts = list(result["scenarios"].values())
    for name, row in [*result["scenarios"].items(), ("total", result["total"]), ("history", result["history"])]:
        assert row["asked"] == row["allowed"] + row["would_block"] + row["blocked"], name
        assert row["operations_without_guard"] - row["operations_with_guard"] == row["operations_saved"] >= 0, name
        assert row["usd_saved"] == pytest.approx(row["operations_saved"] * result["usd_per_operation"]), name
    for member in ("conversations", "asked", "blocked", "operations_saved", "told"):
        assert sum(part[member] for part in parts) == result["total"][member], member
    assert result["total"]["operations_saved"] > 0


def test_the_temporary_folder_is_gone_and_the_address_was_said_at_once(short):
    result, shown, folder = short
    assert list(folder.glob("runguard-demo-*")) == []
    assert shown.stderr.splitlines()[0] == f"RunGuard demo: {result['url']}/"


def test_the_same_seed_gives_the_same_numbers(tmp_path):
    """All but the outage, which runs on the clock of this machine."""
    def numbers(seed):
        shown = demo("--seconds", "2", "--json", "--history", "0", "--rate", "100", "--seed", seed, tmp_path=tmp_path)
        assert shown.returncode == 0, shown
        scenarios = json.loads(shown.stdout)["scenarios"]
        return {name: row for name, row in scenarios.items() if name != "api-outage"}

    first = numbers("5")
    assert first == numbers("5")
    assert first != numbers("6")


def test_no_scenario_hides_the_others(tmp_path):
    """What is watched for a minute is of the size of the hours before it."""
    shown = demo("--seconds", "1", "--json", "--history", "0", tmp_path=tmp_path)
    assert shown.returncode == 0, shown
    scenarios = {name: row["asked"] for name, row in json.loads(shown.stdout)["scenarios"].items()}
    assert "agent-leak" not in scenarios and 0 < max(scenarios.values()) < sum(scenarios.values()) / 2, scenarios


def test_only_some_scenarios_as_a_table(tmp_path):
    shown = demo("--seconds", "1", "--history", "0", "--scenario", "handoff-cycle=3,healthy", "--usd-per-operation", "0.5", tmp_path=tmp_path)
    assert shown.returncode == 0, shown
    assert "handoff-cycle" in shown.stdout and "healthy" in shown.stdout and "kb-gap" not in shown.stdout
    assert "\x1b[" not in shown.stdout and "\r" not in shown.stdout, "the moving line is for terminals"
    row = next(line.split() for line in shown.stdout.splitlines() if line.strip().startswith("handoff-cycle"))
    saved, dollars = int(row[6]), float(row[8].lstrip("$"))
    assert int(row[4]) - int(row[5]) == saved > 0 and dollars == pytest.approx(saved * 0.5)


def test_kept_data_can_be_served_afterwards(tmp_path, serve):
    data = tmp_path / "kept"
    shown = demo("--seconds", "1", "--json", "--history", "2d", "--data", data, tmp_path=tmp_path)
    assert shown.returncode == 0, shown
    result = json.loads(shown.stdout)
    server = serve(virtual_clock=False, data=data)
    with urllib.request.urlopen(f"{server.url}/v1/stats?since=3d&bucket=day") as answer:
        stats = json.load(answer)
    blocked = sum(count["count"] for count in stats["totals"] if count["outcome"] == "blocked")
    assert blocked == result["total"]["blocked"] + result["history"]["blocked"]
    again = demo("--seconds", "1", "--data", data, tmp_path=tmp_path)
    assert again.returncode == 2 and "--history 0" in again.stderr


def test_keep_says_where(tmp_path):
    shown = demo("--seconds", "1", "--history", "0", "--scenario", "kb-gap", "--keep", tmp_path=tmp_path)
    assert shown.returncode == 0, shown
    (folder,) = tmp_path.glob("runguard-demo-*")
    assert f"kept: {folder}" in shown.stderr and (folder / "runguard.db").exists()


def test_a_port_in_use_is_said_clearly(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shown = run_cli("demo", "--no-open", "--port", str(port), cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert shown.returncode == 1
    assert f"127.0.0.1:{port}" in shown.stderr and "--port 0" in shown.stderr and "panicked" not in shown.stderr
    assert list(tmp_path.iterdir()) == []


def start(tmp_path, *arguments):
    process = subprocess.Popen(
        [binary(), "demo", "--no-open", "--port", "0", "--json", *arguments], cwd=tmp_path, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(TMPDIR=str(tmp_path)),
    )
    first = process.stderr.readline()
    return process, re.search(r"http://[\d.:]+", first).group()


def wait_for_decisions(url):
    for _ in range(500):
        with urllib.request.urlopen(f"{url}/v1/decisions?limit=1") as answer:
            if json.load(answer)["decisions"]:
                return
        time.sleep(0.02)
    raise AssertionError("no traffic came")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_with_what_there_is_and_cleans_up(tmp_path, how):
    process, url = start(tmp_path, "--seconds", "600", "--history", "0")
    wait_for_decisions(url)
    process.send_signal(how)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    total = json.loads(out)["total"]
    assert total["asked"] == total["allowed"] + total["would_block"] + total["blocked"] > 0
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_the_past_is_written_cleans_up(tmp_path):
    process, _ = start(tmp_path, "--history", "29d")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130 and list(tmp_path.iterdir()) == []


def test_stay_serves_until_ctrl_c(tmp_path):
    process, url = start(tmp_path, "--seconds", "1", "--history", "0", "--scenario", "kb-gap", "--stay")
    assert any("stays until Ctrl-C" in line for line in iter(process.stderr.readline, ""))
    with urllib.request.urlopen(f"{url}/readyz") as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0 and list(tmp_path.iterdir()) == []


def test_the_past_is_where_it_belongs(tmp_path):
    process, url = start(tmp_path, "--seconds", "1", "--history", "3d", "--scenario", "ai-task-retry,healthy", "--stay")
    for line in iter(process.stderr.readline, ""):
        if "stays until" in line:
            break
    with urllib.request.urlopen(f"{url}/v1/stats?since=4d&bucket=day") as answer:
        buckets = json.load(answer)["buckets"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert len(buckets) >= 3, "one a day"


@pytest.mark.parametrize(("arguments", "says"), [
    (["--scenario", "handof-cycle"], "handoff-cycle"),
    (["--scenario", "healthy=many"], "healthy=5"),
    (["--scenario", "healthy,healthy"], "twice"),
    (["--history", "90d"], "29d"),
    (["--history", "week"], "length of time"),
    (["--seconds", "0"], "--seconds"),
    (["--usd-per-operation=-1"], "negative"),
], ids=str)
def test_wrong_usage(arguments, says, tmp_path):
    shown = demo(*arguments, tmp_path=tmp_path)
    assert shown.returncode == 2 and says in shown.stderr, shown
    assert list(tmp_path.iterdir()) == []


def test_the_list_is_for_people_too():
    shown = run_cli("demo", "--list")
    assert shown.returncode == 0
    for scenario in SCENARIOS:
        assert scenario["name"] in shown.stdout


# -- estimate ------------------------------------------------------------------------------------------------------


def estimate(*arguments):
    shown = run_cli("estimate", "--json", *arguments)
    assert shown.returncode == 0, shown
    return json.loads(shown.stdout)


# Name, period, operations without and with the guard.
WORKED = [
    ("botpress-retries", "day", 15_000, 0),
    ("botpress-retries", "month", 450_000, 0),
    ("botpress-one-message", "once", 5, 0),
    ("botpress-six-bots", "once", 12, 12),
    ("botpress-kb-gap", "once", 20, 4),
    ("botpress-launch", "once", 100_000, 20_000),
    ("botpress-spiral", "once", 20, 4),
    ("voiceflow-three-attempts", "once", 6, 6),
    ("voiceflow-reprompts-month", "month", 17_250, 17_250),
    ("voiceflow-spoken-email", "once", 15, 0),
    ("voiceflow-ceiling-of-five", "once", 5, 0),
    ("voiceflow-kb-chain", "once", 6, 2),
    ("voiceflow-storm", "once", 300, 10),
]


@pytest.mark.parametrize(("name", "period", "without", "with_guard"), WORKED)
def test_the_documents_examples(name, period, without, with_guard):
    line = estimate("--example", name)["estimate"][period]
    assert (line["without"]["operations"], line["with"]["operations"]) == (without, with_guard)
    assert line["saved"]["operations"] == without - with_guard


def test_where_the_documents_have_miscounted():
    examples = estimate("--examples")["examples"]
    assert {example["example"]["name"] for example in examples} == {name for name, *_ in WORKED} | {"voiceflow-threshold"} | BEDROCK
    wrong = [
        (example["example"]["name"], figure["document"], figure["right"])
        for example in examples for figure in example["example"]["figures"] if not figure["agrees"]
    ]
    assert wrong == [
        ("botpress-retries", 75_000, 15_000), ("botpress-spiral", 3, 4), ("botpress-spiral", 6, 13), ("voiceflow-kb-chain", 1, 2),
        ("bedrock-sonnet", 750, 900),
    ]


# Those that count tokens.
BEDROCK = {"bedrock-sonnet", "bedrock-llama", "bedrock-haiku", "bedrock-lookups", "bedrock-growth"}


@pytest.mark.parametrize(("arguments", "tokens", "nanos"), [
    (["--example", "bedrock-sonnet"], 1_000_000, 4_500_000_000),
    (["--example", "bedrock-sonnet", "--steps", "200"], 2_000_000, 9_000_000_000),
    (["--example", "bedrock-llama"], 4_000_000, 2_880_000_000),
    (["--example", "bedrock-llama", "--usd-per-million-input", "2.65", "--usd-per-million-output", "2.65"], 4_000_000, 10_600_000_000),
    (["--example", "bedrock-haiku"], 5_000_000, 4_000_000_000),
    (["--example", "bedrock-haiku", "--model", "gpt-4o-mini"], 5_000_000, 750_000_000),
    (["--model", "gpt-4o", "--steps", "10", "--input-tokens", "1000", "--output-tokens", "100", "--growth", "500", "--runs", "2"], 65_000, 182_500_000),
], ids=str)
def test_a_loop_in_tokens(arguments, tokens, nanos):
    result = estimate(*arguments)["estimate"]["once"]
    assert (result["without"]["input_tokens"], result["without"]["usd_nanos"]) == (tokens, nanos)
    assert result["without"]["usd_nanos"] == result["with"]["usd_nanos"] + result["saved"]["usd_nanos"]
    shown = run_cli("estimate", *arguments).stdout
    assert "tokens read" in shown and f"{nanos / 1e9:.2f}" in shown


def test_own_numbers_exactly():
    result = estimate(
        "--guard", "kb_requery", "--conversations", "12,345", "--affected", "7.5%", "--attempts", "4.2", "--allowed", "1",
        "--credits-per-operation", "0.5", "--usd-per-operation", "0.0031", "--days-per-month", "31",
    )
    day, month = result["estimate"]["day"], result["estimate"]["month"]
    # 12,345 × 0.075 × 4.2 × 2 = 7,777.35 a day, and × 31 = 241,097.85 a month; with one query 1,851.75 and 57,404.25.
    assert (day["without"]["operations"], day["with"]["operations"], day["saved"]["operations"]) == (7_777, 1_852, 5_925)
    assert (month["without"]["operations"], month["with"]["operations"]) == (241_098, 57_404)
    assert day["without"]["credits"] == "3888.5" and day["without"]["usd_nanos"] == 24_108_700_000


def test_estimate_for_people():
    shown = run_cli("estimate", "--example", "botpress-retries", "--usd-per-operation", "0.01")
    assert shown.returncode == 0, shown
    assert "15,000; published: 75,000" in shown.stdout and "450,000" in shown.stdout and "150.00" in shown.stdout
    assert "botpress-launch" in run_cli("estimate", "--examples").stdout
    assert run_cli("estimate").returncode == 0, "without a terminal nothing is asked"


@pytest.mark.parametrize(("arguments", "says"), [
    (["--example", "botpress-retry"], "botpress-retries"),
    (["--guard", "stall"], "kb_requery"),
    (["--affected", "130"], "--affected"),
    (["--attempts", "x"], "--attempts"),
    (["--conversations", "2e3"], "--conversations"),
    (["--conversations", "9999999999999"], "--conversations"),
    (["--model", "gpt-4o-mni"], "gpt-4o-mini"),
    (["--steps", "100001"], "--steps"),
    (["--steps", "100", "--conversations", "5"], "ask for one of them"),
    (["--example", "bedrock-sonet"], "bedrock-sonnet"),
], ids=str)
def test_wrong_numbers(arguments, says):
    shown = run_cli("estimate", *arguments)
    assert shown.returncode == 2 and says in shown.stderr, shown
