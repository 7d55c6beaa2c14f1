"""Settings (one class, environment variables), Celery configuration, schedule, logging, telemetry, event catalogue.

May import: the leaf modules of `fencebeat` (decision 001), pydantic, structlog, OpenTelemetry.
Must never know: what is indexed, how, or where.
"""
