"""A local OpenSearch without Docker: its jars from Maven (`jars`), a Java to run it (`java`), one node (`server`).

May import: the rest of `ops.services`.
Must never know: what is indexed in it.
"""
