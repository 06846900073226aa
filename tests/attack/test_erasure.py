"""An erased session is in no file: not with a reader open, not with alerts off, not after a kill in between."""

import random
import sqlite3
import threading
import time

import pytest

from catalogue import AGENT_ACTION, AI_TASK_RETRY, HANDOFF, KB_RECORD

FULL_TEXT = '[log]\nstore_text = "full"\n'
ALERTS = """
[[alerts.target]]
name = "hook"
kind = "webhook"
url = "http://127.0.0.1:9/"
allow_private = true
secret_env = "HOOK_SECRET"
"""
HOOK = {"HOOK_SECRET": "whsec_" + "c2VjcmV0" * 5}


def speak(client, number: int, turns: int = 3) -> str:
    """A session with its own marker wherever a caller can put text; gives the marker."""
    marker = f"marker-{number}-{random.randrange(1 << 40):x}-end"
    for turn in range(turns):
        text = f"{marker} {turn} " + f"{marker} " * random.randrange(1, 120)
        client.post(AI_TASK_RETRY, {"session_id": marker, "task_name": "classify", "user_message": text},
                    {"idempotency-key": f"{marker}-{turn}"})
        client.post(AGENT_ACTION, {"session_id": marker, "action_name": "a", "action_params": {"text": text}})
        client.post(HANDOFF, {"session_id": marker, "source_bot": "orchestrator", "target_bot": f"bot-{turn}"})
        client.post(KB_RECORD, {"session_id": marker, "query": text[:200], "confidence_score": 0.1, "retrieved_chunks": 1})
    return marker


def until_finished(server, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while notes := list((server.data / "erasing").glob("*.json")):
        assert time.monotonic() < deadline, f"{len(notes)} erasures are not finished\n{server.log()[-3000:]}"
        time.sleep(0.05)


def reader_of(path) -> sqlite3.Connection:
    """Somebody who looks at a database, as the guides show, and leaves it open."""
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return reader


@pytest.mark.parametrize("alerts", [ALERTS, ""], ids=["alerts", "no alerts"])
def test_no_byte_of_many_sessions_is_left(serve, alerts):
    server = serve(FULL_TEXT + alerts, environment=HOOK)
    client = server.client(keep_alive=True)
    markers = [speak(client, number) for number in range(60)]
    client.get("/v1/overview")
    time.sleep(2.5)  # the index and the insights are written every two seconds
    random.shuffle(markers)
    kept = markers[50:]
    for marker in markers[:50]:
        erased = client.delete(f"/v1/sessions/{marker}")
        assert erased.status == 200 and erased.json["erased"] is True, erased
        assert server.files_containing(marker) == []
    assert server.files_containing(*markers[:50]) == []
    assert all(server.files_containing(marker) for marker in kept), "nobody else's rows went"
    server.restart()
    assert server.files_containing(*markers[:50]) == []
    client = server.client()
    assert [client.get(f"/v1/sessions/{marker}").status for marker in kept] == [200] * len(kept)


def test_alerts_that_are_off_keep_nothing_either(serve):
    """The file of an earlier life, with alerts on."""
    server = serve(FULL_TEXT + ALERTS, environment=HOOK)
    client = server.client()
    client.post("/guard/budget/record", {"session_id": "person-4711", "max_usd": 1.0, "usd": 0.9})
    deadline = time.monotonic() + 20
    while not any(found.startswith("alerts.db") for found in server.files_containing("person-4711")):
        assert time.monotonic() < deadline, "the alert was never written down"
        time.sleep(0.05)
    assert server.stop() == 0
    server.config_file.write_text(FULL_TEXT)
    server.start()
    assert client.delete("/v1/sessions/person-4711").json["erased"] is True
    assert server.files_containing("person-4711") == []


@pytest.mark.parametrize("file", ["runguard.db", "index.db", "insight.db"])
def test_with_a_reader_open_it_says_that_it_waits_and_finishes_by_itself(serve, file):
    server = serve(FULL_TEXT)
    client = server.client()
    marker = speak(client, 0)
    client.get("/v1/overview")
    time.sleep(2.5)
    reader = reader_of(server.data / file)
    waiting = client.delete(f"/v1/sessions/{marker}")
    if waiting.status == 200:
        assert server.files_containing(marker) == [], "it is as it says"
        return
    assert waiting.status == 202 and waiting.json["erased"] is False and waiting.json["pending"] == [file], waiting
    assert file in waiting.json["message"]
    assert client.get(f"/v1/sessions/{marker}").status == 404, "no answer shows it"
    client.post(AGENT_ACTION, {"session_id": marker + "-later", "action_name": "a"})
    again = client.delete(f"/v1/sessions/{marker}")
    assert again.status == 202, again
    server.kill()
    server.start()
    assert client.delete(f"/v1/sessions/{marker}").status == 202, "a restart forgets nothing"
    reader.close()
    until_finished(server)
    assert server.files_containing(f'"{marker}"', f"{marker} ") == []
    done = client.delete(f"/v1/sessions/{marker}")
    assert done.status == 200 and done.json == {"erased": True, "log_entries": 0}, done
    assert client.delete(f"/v1/sessions/{marker}").status == 404


def test_a_life_that_begins_while_an_erasure_waits_is_not_erased(serve):
    server = serve(FULL_TEXT)
    client = server.client()
    marker = speak(client, 0)
    reader = reader_of(server.data / "runguard.db")
    assert client.delete(f"/v1/sessions/{marker}").status == 202
    client.allowed(AGENT_ACTION, session_id=marker, action_name="anew")
    reader.close()
    until_finished(server)
    timeline = client.get(f"/v1/sessions/{marker}").json["timeline"]
    assert [row["subject"] for row in timeline] == ["anew"]


def test_what_a_session_did_while_its_erasure_waits_goes_with_the_next_erasure(serve):
    server = serve(FULL_TEXT)
    client = server.client()
    marker = speak(client, 0)
    reader = reader_of(server.data / "runguard.db")
    assert client.delete(f"/v1/sessions/{marker}").status == 202
    client.allowed(AGENT_ACTION, session_id=marker, action_name="anew")
    again = client.delete(f"/v1/sessions/{marker}")
    assert again.status == 202 and again.json["log_entries"] == 1, again
    assert client.get(f"/v1/sessions/{marker}").status == 404
    reader.close()
    until_finished(server)
    assert client.delete(f"/v1/sessions/{marker}").status == 200
    assert client.get(f"/v1/sessions/{marker}").status == 404
    assert server.files_containing(f'"{marker}"', f"{marker} ") == []


def erase_under_kills(serve, rounds: int) -> None:
    server = serve(FULL_TEXT)
    for number in range(rounds):
        markers = [speak(server.client(keep_alive=True), number * 100 + k, turns=2) for k in range(6)]
        told: list[str] = []

        def erase(markers=markers, told=told):
            try:
                for marker in markers:
                    if server.client().delete(f"/v1/sessions/{marker}").status == 200:
                        told.append(marker)
            except OSError:
                pass
            except Exception as error:  # a torn answer: the server is gone
                assert "http.client" in type(error).__module__, error

        erasing = threading.Thread(target=erase)
        erasing.start()
        time.sleep(random.random() * 0.4)
        server.kill()
        erasing.join()
        assert server.files_containing(*told) == [], "what was said to be erased is"
        server.start()
        until_finished(server)
        left = [marker for marker in markers if server.client().get(f"/v1/sessions/{marker}").status == 200]
        assert server.files_containing(*(marker for marker in markers if marker not in left)) == []
        for marker in left:
            assert server.client().delete(f"/v1/sessions/{marker}").json["erased"] is True
        assert server.files_containing(*markers) == []


def test_a_kill_in_between_leaves_nothing_behind(serve):
    erase_under_kills(serve, rounds=4)


@pytest.mark.slow
def test_kills_at_many_moments_leave_nothing_behind(serve):
    erase_under_kills(serve, rounds=40)
