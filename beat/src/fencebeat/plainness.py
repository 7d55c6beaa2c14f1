"""Whether a message is what Celery makes of task, arguments and options alone, so that a template can stand for it.

What two renders cannot show is asked here: somebody who listens to publishing, a method that was overridden, wrapped or
patched, a router that is a function, another serializer.

May import: Celery. Must never know: templates, Redis.
"""

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.signals import after_task_publish, before_task_publish, task_sent

_CONFIGURED = ("task_", "broker_", "timezone", "enable_utc", "accept_", "result_", "redis_", "event_", "imports")


def somebody_listens() -> bool:
    """Whether anything is told of each message that is published."""
    return bool(before_task_publish.receivers or after_task_publish.receivers or task_sent.receivers)


def application_is_plain(app: Celery) -> bool:
    """Whether nothing of the application itself changes messages beyond their options."""
    conf = app.conf
    return (
        conf.task_serializer == "json"
        and conf.task_protocol == 2  # version 1 has the task id in its body
        and not (conf.task_compression or conf.task_always_eager or conf.task_send_sent_event)
        and type(app.amqp) is AMQP
        and all(type(router) is MapRoute for router in app.amqp.router.routes)
        and _is_celerys(app, "send_task", "celery/app/base.py")
        and _is_celerys(app, "now", "celery/app/base.py")
    )


def configuration_of(app: Celery) -> str:
    """What is configured and may change messages, as text: another text, other messages."""
    facts: dict[str, Any] = {}
    for settings in reversed(app.conf.maps[:-1]):  # the last ones are Celery's defaults
        facts |= {name: value for name, value in settings.items() if str(name).startswith(_CONFIGURED)}
    return repr(sorted((name, repr(value)) for name, value in facts.items()))


def options_of(app: Celery, task_name: str, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The options that count, the task's own included; None where something else than them counts."""
    task = app.tasks.get(task_name)
    own: Mapping[str, Any] = {}
    if task is not None:
        if task._dump_pydantic_arguments is not None or not (  # noqa: SLF001 - has no public name
            _is_celerys(task, "apply_async", "celery/app/task.py")
            and _is_celerys(task, "shadow_name", "celery/app/task.py")
            and _is_celerys(task, "_get_exec_options", "celery/app/task.py")
        ):
            return None
        own = task._get_exec_options()  # noqa: SLF001 - what `apply_async` asks
    all_of_them = {**own, **options}
    if all_of_them.get("serializer") not in (None, "json") or all_of_them.get("compression"):
        return None
    return all_of_them


def _is_celerys(of: Any, name: str, module: str) -> bool:
    """Whether a method is the one that Celery's own module defines: not overridden, wrapped or patched."""
    method = getattr(of, name)
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    return name not in vars(of) and code is not None and code.co_filename.replace("\\", "/").endswith(module)
