-- What a server offers, kept for the time when it does not run, as JSON. NULL: it is asked when it starts.
ALTER TABLE kb.agent_workspaces ADD COLUMN catalogue bytea;
