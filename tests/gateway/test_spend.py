"""What went through the gateway is seen: sums by whatever one asks for, budgets, runs; and a run is stopped and resumed by hand."""

from __future__ import annotations

import concurrent.futures
import json
import time
from typing import Any

import httpx
import openai
import pytest

from provider import Behaviour
from runguard_process import run_cli
from test_gateway import CHAT, HELLO, MESSAGES, chat, claude, raw


def get(server: Any, path: str, **query: str) -> Any:
    answer = httpx.get(f"{server.url}{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def group(server: Any, by: str) -> dict[str, dict[str, Any]]:
    found = next(group for group in get(server, "/v1/spend", by=by)["groups"] if group["by"] == by)
    return {entry["name"]: entry for entry in found["entries"]}


def ask(server: Any, run: str, **more: Any) -> httpx.Response:
    return raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, **more}, **{"x-runguard-run": run})


def the_run(server: Any, run: str) -> dict[str, Any]:
    return next(found for found in get(server, "/v1/runs", prefix=run)["runs"] if found["run"] == run)


def test_what_was_spent_by_day_model_provider_and_run(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "2", "--max-usd-per-day", "50")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    for _ in range(2):
        assert ask(server, "job-1").status_code == 200
    claude(server, default_headers={"x-runguard-run": "job-2"}).messages.create(model=MESSAGES, max_tokens=1000, messages=HELLO)
    shown = get(server, "/v1/spend", by="day,model,upstream,run,tenant")
    # A thousand tokens each way: 1.25 cents of one model, 1.8 of the other.
    assert shown["total"]["usd"] == pytest.approx(2 * 0.0125 + 0.018)
    assert (shown["total"]["calls"], shown["total"]["input_tokens"], shown["total"]["output_tokens"]) == (3, 3000, 3000)
    assert [entry["name"] for entry in next(one for one in shown["groups"] if one["by"] == "day")["entries"]] == [time.strftime("%Y-%m-%d", time.gmtime())]
    by = {one["by"]: {entry["name"]: entry["usd"] for entry in one["entries"]} for one in shown["groups"]}
    assert by["model"] == {CHAT: pytest.approx(0.025), MESSAGES: pytest.approx(0.018)}
    assert by["upstream"] == {"openai": pytest.approx(0.025), "anthropic": pytest.approx(0.018)}
    assert list(by["run"]) == ["job-1", "job-2"], "the dearest first"
    day = next(budget for budget in shown["budgets"] if budget["scope"] == "tenant/day")
    assert (day["limit_usd"], day["spent_usd"], day["remaining_usd"]) == (50, pytest.approx(0.043), pytest.approx(49.957))
    assert day["renews_at"].endswith("T00:00:00Z") or day["renews_at"].endswith("T00:00:00.000Z")
    run = the_run(server, "job-1")
    assert (run["state"], run["found_by"], run["model"], run["upstream"], run["calls"]) == ("live", "header", CHAT, "openai", 2)
    assert (run["budget"]["spent_usd"], run["budget"]["limit_usd"], run["budget"]["reserved_usd"]) == (pytest.approx(0.025), 2, 0)


def test_it_is_the_same_after_a_restart_and_pages_find_every_run_once(gateway: Any, provider: Any) -> None:
    server = gateway()
    for number in range(7):
        ask(server, f"batch-{number}")
    ask(server, "other")
    before = get(server, "/v1/spend", by="run")["groups"]
    server.stop()
    server.start()
    assert get(server, "/v1/spend", by="run")["groups"] == before
    found, cursor = [], None
    while True:
        page = get(server, "/v1/runs", prefix="batch-", limit="3", sort="calls", **({"cursor": cursor} if cursor else {}))
        found += [run["run"] for run in page["runs"]]
        assert page["found"] == 7
        if not (cursor := page["next_cursor"]):
            break
    assert sorted(found) == [f"batch-{number}" for number in range(7)]


def test_a_refused_call_counts_once_however_often_it_asked(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.006")
    provider.behaviour = Behaviour(tokens=400, input_tokens=10)
    # It is lowered to what is left: asked for twice, and not refused.
    assert ask(server, "short", max_tokens=16000).status_code == 200
    assert the_run(server, "short")["refused"] == 0
    for _ in range(3):
        assert ask(server, "short", max_tokens=16000).status_code == 402
    run = the_run(server, "short")
    assert (run["calls"], run["refused"], run["state"], run["reason"]) == (1, 3, "tripped", "budget_exceeded")
    total = get(server, "/v1/spend")["total"]
    assert total["saved_usd"] == pytest.approx(3 * total["usd"])


def refusals(server: Any) -> list[tuple[str, str]]:
    """What the log says was refused, whatever the caller heard."""
    return [(row["session_id"], row["reason"]) for row in get(server, "/v1/decisions", outcome="blocked")["decisions"]]


def test_a_call_that_is_lowered_and_answered_is_no_block_and_what_is_refused_is_one(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.006")
    provider.behaviour = Behaviour(tokens=400, input_tokens=10)
    assert ask(server, "short", max_tokens=16000).status_code == 200
    assert refusals(server) == [], "the longest answer did not fit, and was not what was asked for in the end"
    asked = [row["outcome"] for row in get(server, "/v1/decisions", guard="budget", session="short")["decisions"] if row["input"]["act"] == "reserve"]
    assert asked == ["allowed"]
    # What is left pays for fewer tokens than anybody would want.
    refused = ask(server, "short", max_tokens=16000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")
    assert refusals(server) == [("short", "budget_exceeded")]
    assert ask(server, "short", max_tokens=16000).status_code == 402
    assert refusals(server) == [("short", "budget_exceeded")] * 2
    assert the_run(server, "short")["budget"]["reserved_usd"] == 0


ALERTS = '[[alerts.target]]\nname = "hook"\nkind = "webhook"\nurl = "http://127.0.0.1:9/"\nsecret_env = "HOOK_SECRET"\nallow_private = true\n'


def test_a_budget_that_is_used_up_is_told_when_a_call_is_refused_and_not_when_one_is_lowered(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.006", config=ALERTS, environment={"HOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
    provider.behaviour = Behaviour(tokens=10, input_tokens=10)

    def told() -> list[str]:
        deadline = time.monotonic() + 30
        while (seen := get(server, "/v1/alerts"))["behind_rows"] and time.monotonic() < deadline:
            time.sleep(0.05)
        entries = seen["queued"] + seen["delivered"] + seen["dead"]
        return [entry["title"] for entry in entries if "udget" in entry["title"]]

    assert ask(server, "short", max_tokens=16000).status_code == 200
    assert told() == [], "a hundredth of it is spent"
    refused = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": [{"role": "user", "content": "word " * 20_000}]}, **{"x-runguard-run": "short"})
    assert refused.status_code == 402
    assert len(told()) == 1 and "100 %" in told()[0], told()


def test_a_call_that_waits_for_others_and_is_answered_is_no_block(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-day", "0.01", config='[gateway]\npatience = "20s"\n')
    provider.behaviour = Behaviour(tokens=10, input_tokens=10, waits=1.0)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: ask(server, f"side-{number}", max_tokens=700).status_code, range(4)))
    assert answers == [200] * 4, "each but one waited for what the others gave back"
    assert refusals(server) == []


def test_metrics_count_what_is_decided_for_the_gateway(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.006")
    provider.behaviour = Behaviour(tokens=400, input_tokens=10)
    assert [ask(server, "short", max_tokens=16000).status_code for _ in range(2)] == [200, 402]
    shown = httpx.get(f"{server.url}/metrics").text
    counted = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in shown.splitlines() if line.startswith("runguard_decisions_total")}
    # Two questions were looked at; one was paid for (set aside, settled) and one was refused.
    assert counted['runguard_decisions_total{guard="agent_run",outcome="allowed",reason=""}'] == "2"
    assert counted['runguard_decisions_total{guard="budget",outcome="allowed",reason=""}'] == "2"
    assert counted['runguard_decisions_total{guard="budget",outcome="blocked",reason="budget_exceeded"}'] == "1"


def test_a_loop_is_seen_and_somebody_lets_it_go_on(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    client, messages = chat(server, default_headers={"x-runguard-run": "looping"}), list(HELLO)
    with pytest.raises(openai.APIStatusError):
        for _ in range(30):
            message = client.chat.completions.create(model=CHAT, messages=messages).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "nothing found"} for call in message.tool_calls]
    run = the_run(server, "looping")
    assert (run["state"], run["reason"], run["calls"], run["refused"], run["steps"]) == ("tripped", "run_stalled", 4, 1, 5)
    assert httpx.post(f"{server.url}/v1/runs/looping/resume").json()["state"] == "live"
    assert the_run(server, "looping")["state"] == "live"
    client.chat.completions.create(model=CHAT, messages=messages)
    assert len(provider.asked) == 5


def test_a_run_is_stopped_by_hand_until_somebody_resumes_it(gateway: Any, provider: Any) -> None:
    server = gateway(config="[guards.agent_run]\nmode = \"observe\"\n")
    assert ask(server, "team/job 7").status_code == 200
    path = f"{server.url}/v1/runs/team%2Fjob%207"
    assert httpx.post(f"{path}/stop", json={"note": "Too dear, says Ada."}).json()["state"] == "stopped"
    server.kill()
    server.start()
    refused = ask(server, "team/job 7")
    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "run_stopped"), "also where loops are only watched"
    assert "Too dear, says Ada." in refused.json()["error"]["message"]
    assert len(provider.asked) == 1
    assert ask(server, "another").status_code == 200
    run = the_run(server, "team/job 7")
    assert (run["state"], run["note"], run["refused"]) == ("stopped", "Too dear, says Ada.", 1)
    done = [(row["outcome"], row["session_id"]) for row in get(server, "/v1/decisions", kind="admin")["decisions"]]
    assert done == [("run_stopped_by_hand", "team/job 7")]
    assert httpx.post(f"{path}/resume").status_code == 200
    assert ask(server, "team/job 7").status_code == 200
    assert httpx.post(f"{server.url}/v1/runs/never-seen/stop").status_code == 404
    assert httpx.post(f"{path}/stop", json={"why": "?"}).status_code == 422


def test_an_erased_run_is_in_no_list(gateway: Any, provider: Any) -> None:
    server = gateway()
    ask(server, "forget-me")
    ask(server, "keep-me")
    assert [run["run"] for run in get(server, "/v1/runs", prefix="forget")["runs"]] == ["forget-me"]
    time.sleep(3)  # Until it is in the file of the insights, too.
    erased = httpx.delete(f"{server.url}/v1/sessions/forget-me")
    assert erased.status_code in (200, 202)
    assert get(server, "/v1/runs", prefix="forget")["runs"] == []
    assert set(group(server, "run")) == {"keep-me"}
    assert get(server, "/v1/spend")["total"]["calls"] == 2, "what was spent stays spent"
    assert server.files_containing("forget-me") == []


def test_keys_see_and_change_what_is_theirs(gateway: Any, provider: Any) -> None:
    server = gateway(environment={"OPENAI_API_KEY": "sk-operators-secret"},
                     config="[guards.budget.scopes.key.day]\nmax_usd = 3\n")
    def key(*more: str) -> str:
        made = run_cli("key", "create", "--data", server.data, *more)
        return next(word for word in made.stdout.split() if word.startswith("rg_"))

    guard, read, admin = key("--role", "guard", "--name", "agents"), key("--role", "read"), key("--role", "admin")
    deadline = time.monotonic() + 10
    # Nobody gets in without a key, and the one that was made last is known: so are the others.
    while [httpx.get(f"{server.url}/v1/runs", headers=headers).status_code == 401 for headers in ({}, {"authorization": f"Bearer {admin}"})] != [True, False]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key=guard, default_headers={"x-runguard-run": "job"}).chat.completions.create(model=CHAT, messages=HELLO)

    def as_key(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    runs = httpx.get(f"{server.url}/v1/runs", headers=as_key(read)).json()["runs"]
    assert len(runs) == 1
    name, identity = runs[0]["run"], runs[0]["key"]
    assert name == f"{identity}/job"
    spent = httpx.get(f"{server.url}/v1/spend", params={"by": "key"}, headers=as_key(read)).json()
    assert [entry["name"] for entry in spent["groups"][0]["entries"]] == [identity]
    assert [(budget["scope"], budget["name"], budget["limit_usd"]) for budget in spent["budgets"]] == [("key/day", identity, 3)]
    stop = f"{server.url}/v1/runs/{identity}%2Fjob/stop"
    assert [httpx.post(stop, headers=as_key(key)).status_code for key in (guard, read)] == [403, 403]
    assert httpx.get(f"{server.url}/v1/spend", headers=as_key(guard)).status_code == 403
    assert httpx.post(stop, headers=as_key(admin)).status_code == 200


def test_the_command_line_shows_and_changes_it(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-day", "5", "--max-usd-per-run", "0.006")
    provider.behaviour = Behaviour(tokens=400, input_tokens=10)
    name = "auto-2026-11-16-0123456789abcdef"
    for run in (name, "agent-of-the-night-shift-with-a-long-name"):
        ask(server, run, max_tokens=400)
        ask(server, run, max_tokens=400)

    def cli(*arguments: str) -> str:
        done = run_cli(*arguments, "--url", server.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    spent = cli("spend", "--by", "model", "--since", "7d")
    assert CHAT in spent and "tenant/day" in spent and "Saved by blocks" in spent
    assert cli("spend").splitlines()[0].split()[:3] == ["day", "calls", "blocked"]
    assert json.loads(run_cli("spend", "--json", "--url", server.url).stdout)["total"]["calls"] == 2
    first = cli("spend", "--by", "run", "--limit", "1")
    assert "agent-of-the-night-shift-with-a-long-name " in first, "no name is cut where no person reads"
    assert "1 more are not shown: --limit 2 shows them too." in first and "not shown" not in cli("spend", "--by", "run")
    scopes = cli("spend", "--by", "scope")
    assert "No model call was paid for" not in scopes and "named no scope" in scopes
    # What was written to a cache is not among the input, neither here nor in JSON.
    paid = {"session_id": "cached", "model": MESSAGES, "input_tokens": 100, "cache_write_tokens": 700, "output_tokens": 10}
    assert httpx.post(f"{server.url}/guard/budget/record", json=paid).status_code == 200
    written = next(line for line in cli("spend", "--by", "model").splitlines() if MESSAGES[:20] in line).split()
    assert written[3:7] == ["100", "10", "0", "700"], written
    assert group(server, "model")[MESSAGES]["input_tokens"] == 100
    assert name in cli("runs", "--prefix", "auto-")
    assert "is stopped" in cli("runs", "stop", name, "--note", "enough")
    stopped = json.loads(run_cli("decisions", "--kind", "admin", "--json", "--url", server.url).stdout)["decisions"]
    assert [(row["kind"], row["session_id"]) for row in stopped] == [("admin", name)]
    assert '"limits":"$0.006 per run, $5.00 per tenant/day"' in server.log()
    shown = cli("runs")
    assert "stopped" in shown and "enough, gpt-4o" in shown
    assert "may go on" in cli("runs", "resume", name)
    assert "No run asked" in cli("runs", "--prefix", "nothing")
    assert run_cli("runs", "stop", "never-seen", "--url", server.url).returncode == 3
