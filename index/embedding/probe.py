"""The probe text: it travels in every batch, and its vector is known, so another build or another order shows."""

PROBE = "fencebeat probe: seven grey herons counted eleven brass keys beside the harbour wall."
"""Short, so it costs little; and nothing a document says, so its vector is not near to any other."""
