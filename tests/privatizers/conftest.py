"""Releases of many seeds are shared by the tests of a module, and are of no use to the next."""

import mechanism_pieces
import pytest


@pytest.fixture(scope="module", autouse=True)
def forget_releases():
    yield
    mechanism_pieces.released.cache_clear()
