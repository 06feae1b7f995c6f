-- Volumes that are to be removed: of servers that were deleted with them. A row is written in the same statement that
-- deletes the server, and goes when the volumes are gone; a daemon that was killed in between finishes it at its next
-- start, before anybody of that name can start.

CREATE TABLE kb.volume_removals (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now()
);
