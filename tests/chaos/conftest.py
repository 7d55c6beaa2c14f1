"""The worlds of the acceptance tests, for drives with real processes."""

from tests.support.world_fixtures import corpus, make_world

__all__ = ["corpus", "make_world"]
