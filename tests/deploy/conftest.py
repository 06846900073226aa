"""The deployment files, read once, and the acceptance suite's way to run the binary."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "acceptance"))


@pytest.fixture(scope="session")
def routes() -> set[str]:
    """Every path that answers a GET."""
    paths = json.loads((REPOSITORY / "docs" / "openapi.json").read_text())["paths"]
    return {path for path, methods in paths.items() if "get" in methods}


@pytest.fixture(scope="session")
def compose() -> dict:
    """compose.yaml with its variables filled in: defaults where there are some, else the variable's name."""
    text = (REPOSITORY / "deploy" / "compose.yaml").read_text()
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", r"\2", text)
    return yaml.safe_load(re.sub(r"\$\{(\w+)[^}]*\}", r"\1", text))


@pytest.fixture(scope="session")
def objects() -> list[dict]:
    """Every Kubernetes object, the templates of secrets too."""
    files = sorted((REPOSITORY / "deploy" / "kubernetes").glob("*.yaml"))
    texts = [path.read_text() for path in files if path.name != "kustomization.yaml"]
    return [found for text in texts for found in yaml.safe_load_all(text)]


@pytest.fixture(scope="session")
def one(objects: list[dict]):
    """`one("Deployment")`: the only object of a kind, or the one with a name."""

    def find(kind: str, name: str | None = None) -> dict:
        [found] = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
        return found

    return find
