"""Tools to prove a scheduler: beats as processes that can be frozen and killed, and drives that check what came out.

Part of the product, so that any project can run a drive against its own broker.

May import: the rest of the library, Celery, redis. Must never know: pytest, documents, the application.
Nothing else of the library may import it.
"""
