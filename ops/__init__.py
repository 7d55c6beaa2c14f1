"""What an operator touches: commands, the status and metrics endpoint, local services, the two smoke runs.

May import: everything below (`tasks`, `control`, `index`, `config`) and `fencebeat`.
Nothing imports this package.
"""
