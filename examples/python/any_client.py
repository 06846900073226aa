"""An agent that knows nothing of RunGuard, capped at a quarter of a dollar by three lines around it.

Needs no key and no network: the model is a script on this machine that never finishes.
Install first: the runguard wheel and openai.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

from runguard import BudgetExceededError, guard

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, Reply, Usage  # noqa: E402


def agent() -> None:
    """Asks until the model says that it is done. It never does."""
    client, messages = OpenAI(), [{"role": "user", "content": "find rust"}]
    while True:
        said: Any = client.chat.completions.create(model="gpt-4o", messages=messages).choices[0].message.content
        print(f"the model: {said}")
        if "done" in said:
            return
        messages.append({"role": "assistant", "content": said})


def main() -> None:
    with ModelServer([Reply(text="one more moment")], usage=Usage(input=20_000, output=1_000, cached=0, cache_write=0)) as server:
        os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = server.openai_url, "unused"
        try:
            with guard(max_usd=0.25) as run:
                agent()
        except BudgetExceededError as trip:
            print(f"stopped after {server.model_calls} model calls, ${run.budget.spent:.2f}: {trip}")


if __name__ == "__main__":
    main()
