"""Stopping and steering: the kill switch; rollout and the retrieval-quality gate get their rooms here.

May import: `index`, `config`, `fencebeat`.
Must never know: Celery tasks, commands, pages.
"""
