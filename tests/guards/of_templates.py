"""Guards of the fast path: a template stands for Celery's own message only where both are the same, byte for byte."""

from functools import partial

from tests.guards.guard import Guard

TESTS = "tests/integration/test_templates.py"
templates = partial(Guard, file="beat/src/fencebeat/templates.py", breaks="I12")
plain = partial(Guard, file="beat/src/fencebeat/plainness.py", breaks="I12")
cut = partial(Guard, file="beat/src/fencebeat/message_template.py", breaks="I12")


def on(*names: str) -> tuple[str, ...]:
    return tuple(f"{TESTS}::test_{name}" for name in names)


_SETTINGS = on("a_setting_that_changes_messages_turns_the_fast_path_off")
_OVERRIDES = on("a_task_that_overrides_how_it_is_sent_is_asked_each_time")
_OPTIONS = on("an_entry_with_another_serializer_or_compression_is_rendered_fully")

GUARDS = (
    templates(
        name="template-an-hour-later",
        text="with self._clock_held(HOUR):",
        instead="with self._clock_held(0):",
        tests=on("an_absolute_expiry_is_found_by_the_render_an_hour_later"),
    ),
    templates(
        name="template-is-proven",
        text="if not self._proves(template, pieces):",
        instead="if False:",
        tests=on("a_template_that_its_second_render_disproves_is_not_used"),
    ),
    templates(
        name="template-age",
        text="        if template is not None and self._clock.elapsed() - template.made >= AGE:\n",
        instead="        if False:\n",
        tests=on("a_template_is_proven_anew_when_it_is_old"),
    ),
    templates(
        name="template-process",
        text="if self._pid != os.getpid():",
        instead="if False:",
        tests=on("a_fork_drops_all"),
    ),
    templates(
        name="template-configuration",
        text="if (configuration := configuration_of(self._app)) != self._configuration:",
        instead="if configuration := None:",
        tests=on("a_change_of_the_configuration_drops_all"),
    ),
    templates(
        name="template-listeners",
        text="        if somebody_listens():\n            return False\n",
        instead="",
        tests=on("whoever_listens_to_publishing_gets_celerys_own_path_at_once"),
    ),
    templates(
        name="template-computed-arguments",
        text="        if any(isinstance(value, BeatLazyFunc) for value in (*entry.args, *entry.kwargs.values())):\n"
        "            raise Unfit\n",
        instead="",
        tests=on("arguments_that_are_computed_are_computed_each_time"),
    ),
    *(
        plain(name=f"plain-{setting}", text=text, instead=instead, tests=_SETTINGS)
        for setting, text, instead in (
            ("serializer", 'conf.task_serializer == "json"\n        and ', ""),
            ("protocol", "        and conf.task_protocol == 2  # version 1 has the task id in its body\n", ""),
            ("compression", "conf.task_compression or ", ""),
            ("eager", "conf.task_always_eager or ", ""),
            ("sent-event", " or conf.task_send_sent_event)", ")"),
        )
    ),
    plain(
        name="plain-send-task",
        text='        and _is_celerys(app, "send_task", "celery/app/base.py")\n',
        instead="",
        tests=on("an_application_that_sends_in_its_own_way_keeps_it"),
    ),
    plain(
        name="plain-now",
        text='        and _is_celerys(app, "now", "celery/app/base.py")\n',
        instead="",
        tests=on("an_application_with_its_own_clock_or_amqp_keeps_it"),
    ),
    plain(
        name="plain-amqp",
        text="        and type(app.amqp) is AMQP\n",
        instead="",
        tests=on("an_application_with_its_own_clock_or_amqp_keeps_it"),
    ),
    plain(
        name="plain-router",
        text="        and all(type(router) is MapRoute for router in app.amqp.router.routes)\n",
        instead="",
        tests=on("a_router_that_is_a_function_is_asked_each_time"),
    ),
    plain(
        name="plain-pydantic",
        text="task._dump_pydantic_arguments is not None or not (",
        instead="not (",
        tests=on("a_task_whose_arguments_are_models_is_asked_each_time"),
    ),
    plain(
        name="plain-apply-async",
        text='            _is_celerys(task, "apply_async", "celery/app/task.py")\n            and ',
        instead="            ",
        tests=_OVERRIDES,
    ),
    plain(
        name="plain-shadow-name",
        text='            and _is_celerys(task, "shadow_name", "celery/app/task.py")\n',
        instead="",
        tests=_OVERRIDES,
    ),
    plain(
        name="plain-exec-options",
        text='            and _is_celerys(task, "_get_exec_options", "celery/app/task.py")\n',
        instead="",
        tests=_OVERRIDES,
    ),
    plain(
        name="plain-own-serializer",
        text='if all_of_them.get("serializer") not in (None, "json") or ',
        instead="if ",
        tests=_OPTIONS,
    ),
    plain(
        name="plain-own-compression",
        text=' or all_of_them.get("compression"):',
        instead=":",
        tests=_OPTIONS,
    ),
    plain(
        name="plain-patched",
        text=' and code is not None and code.co_filename.replace("\\\\", "/").endswith(module)',
        instead=" and code is not None",
        tests=on("a_patched_task_class_is_asked_each_time"),
    ),
    cut(
        name="template-exchange",
        text='["exchange"] != "":',
        instead='["exchange"] is None:',
        tests=on("an_exchange_with_bindings_is_the_brokers_to_resolve"),
    ),
)
