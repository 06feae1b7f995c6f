-- The environment of a hosted server, sealed as one text. The definition beside it has the names of the variables, each with
-- an empty value. NULL: there is none, or the row was written before and is sealed by the daemon when it starts.
ALTER TABLE kb.agent_workspaces ADD COLUMN environment_sealed text;
