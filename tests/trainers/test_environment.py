"""Whether the trainers are here to be tested: `make test-trainers` has an environment for them."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def test_the_trainers_of_other_projects_are_installed() -> None:
    if find_spec("specforge"):
        return
    if os.environ.get("HSSTORE_REQUIRE_TRAINERS") == "1":
        pytest.fail("specforge is not installed here: run `make test-trainers`")
    pytest.skip("NO TRAINER OF ANOTHER PROJECT IS TESTED HERE: run `make test-trainers`")
