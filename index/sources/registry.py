"""Sources from the settings. A new kind is one entry here and one in `config.settings.SourceConfig`."""

from collections.abc import Mapping

from config.settings import SourceConfig
from fencebeat.clock import Clock
from index.ports import Source
from index.sources.folder import FolderSource


def make_source(source_id: str, config: SourceConfig, clock: Clock) -> Source:
    """The source that a line of FENCEBEAT_SOURCES describes; nothing is opened yet."""
    match config.kind:
        case "folder":
            return FolderSource(
                tenant_id=config.tenant, source_id=source_id, root=config.path, clock=clock, acl=config.acl
            )


def make_sources(configs: Mapping[str, SourceConfig], clock: Clock) -> dict[str, Source]:
    """All sources of the settings by name."""
    return {name: make_source(name, config, clock) for name, config in configs.items()}
