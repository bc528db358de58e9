CREATE TABLE IF NOT EXISTS checkpoint (
    episode_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    key TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (episode_id, number),
    UNIQUE (episode_id, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trail (
    id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL,
    key TEXT NOT NULL,
    event TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS trail_key ON trail (episode_id, key) WHERE key <> '';
CREATE INDEX IF NOT EXISTS trail_episode ON trail (episode_id, id);
