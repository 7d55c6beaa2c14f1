"""A search as the command and the page answer it: who may ask, and what is shown of a hit."""

from dataclasses import asdict
from typing import Any

from config import events
from config.events import emit
from ops.errors import UnknownTenant
from tasks.wiring import Services, services


def check_tenant(made: Services, tenant: str) -> None:
    """Raise UnknownTenant where no source in the settings and nothing in the ledger belongs to `tenant`."""
    known = {source.tenant for source in made.settings.sources.values()}
    if tenant in known:
        return
    known |= made.ledger.tenants()
    if tenant not in known:
        raise UnknownTenant(tenant=tenant or "without a name", known=", ".join(sorted(known)) or "none is set up")


def answer_search(text: str, tenant: str, limit: int, made: Services | None = None) -> dict[str, Any]:
    """The best chunks of one tenant, as JSON shows them. Raises UnknownTenant, Refused, or what the stores raise."""
    made = made or services()
    check_tenant(made, tenant)
    result = made.search.search(tenant, text, limit=limit, timeout=made.settings.search_timeout)
    emit(
        events.SEARCH_ANSWERED,
        target=made.spec.target_id,
        partial=result.partial,
        hits=len(result.hits),
        seconds=result.took_ms / 1000,
    )
    return {"tenant": tenant, "text": text, **asdict(result)}
