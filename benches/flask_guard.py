"""What RunGuard is measured against: the blog posts' design of the agent-action guard.

A Flask application on Flask's own threaded server, one SQLite table with one index, one lock, a
connection for every request, and the three rules computed from the rows of the session's window.
`flask_guard.py PORT DATABASE` serves it.
"""

import sqlite3
import sys
import threading
import time
from collections import Counter

from flask import Flask, jsonify, request

WINDOW_SECONDS = 1800
MAX_TOTAL = 20
MAX_CONSECUTIVE = 3
MAX_SAME = 6

port, database = int(sys.argv[1]), sys.argv[2]
app = Flask(__name__)
lock = threading.Lock()


def connect():
    return sqlite3.connect(database)


def blocked(reason, message, **counts):
    return {"allow": False, "reason": reason, "message": message, **counts}


def decide(session, action, params_hash):
    now = time.time()
    with lock, connect() as connection:
        rows = connection.execute(
            "SELECT action FROM calls WHERE session = ? AND at > ? ORDER BY at",
            (session, now - WINDOW_SECONDS),
        )
        earlier = [name for (name,) in rows]

        total = len(earlier)
        if total >= MAX_TOTAL:
            return blocked(
                "total_action_ceiling",
                f"The agent of session {session!r} has made {total} calls (ceiling: {MAX_TOTAL}) without reaching "
                "its goal. End the loop, tell the user that the task could not be done, and look for the action "
                "that is missing.",
                total_actions=total,
                ceiling=MAX_TOTAL,
                action_distribution=Counter(earlier),
            )

        consecutive = 0
        while consecutive < total and earlier[-1 - consecutive] == action:
            consecutive += 1
        if consecutive >= MAX_CONSECUTIVE:
            return blocked(
                "consecutive_same_action_spiral",
                f"{action!r} was called {consecutive} times in a row (ceiling: {MAX_CONSECUTIVE}). Its result does "
                "not bring the agent on: answer that the tool is unavailable and end the loop.",
                consecutive_count=consecutive,
                ceiling=MAX_CONSECUTIVE,
            )

        same = earlier.count(action)
        if same >= MAX_SAME:
            return blocked(
                "same_action_frequency_spiral",
                f"{action!r} was called {same} times in this session (ceiling: {MAX_SAME}) and leads nowhere. "
                "End the loop.",
                same_action_total=same,
                ceiling=MAX_SAME,
            )

        connection.execute(
            "INSERT INTO calls (session, action, params_hash, at) VALUES (?, ?, ?, ?)",
            (session, action, params_hash, now),
        )
        return {"allow": True, "total_actions_used": total + 1, "actions_remaining": MAX_TOTAL - total - 1}


@app.post("/guard/agent-action")
def agent_action():
    body = request.get_json(force=True)
    session, action = body.get("session_id", ""), body.get("action_name", "")
    answer = decide(session, action, body.get("action_params_hash", ""))
    answer |= {"session_id": session, "action_name": action}
    return jsonify(answer), 200 if answer["allow"] else 429


if __name__ == "__main__":
    with connect() as connection:
        connection.executescript(
            """
            CREATE TABLE calls (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL,
                                action TEXT NOT NULL, params_hash TEXT, result TEXT, at REAL);
            CREATE INDEX calls_by_session ON calls (session, at);
            """
        )
    app.run(port=port)
