-- What a recovery has not been told to pass over, in the order in which it is looked through.

CREATE INDEX tick_audit_unsettled ON tick_audit (namespace, position) WHERE outcome = 'emitted' AND NOT settled;
