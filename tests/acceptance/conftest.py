"""Worlds on real servers, and the two smoke runs as fixtures of their names."""

from tests.support.smokes import distributed_lock, leader_election
from tests.support.world_fixtures import corpus, kind, make_world, world

__all__ = ["corpus", "distributed_lock", "kind", "leader_election", "make_world", "world"]
