"""The worlds of the acceptance tests, for tests of commands and pages on real servers."""

from tests.support.world_fixtures import make_world

__all__ = ["make_world"]
