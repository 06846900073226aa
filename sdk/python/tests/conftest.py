"""A real RunGuard service for the tests that ask one."""

from __future__ import annotations

from typing import Iterator

import pytest
from real_service import service


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with service(tmp_path_factory.mktemp("data")) as address:
        yield address
