"""The API: group agenttuning.io, its types, conditions, schema and CRD. Pure; imports only the contract."""
