-- Tables of release 0.1.0, as it creates them in SQLite.

CREATE TABLE wbe_logbooks (
    id INTEGER NOT NULL,
    uuid VARCHAR(255) NOT NULL,
    name TEXT NOT NULL,
    meta TEXT,
    created_at TEXT,
    updated_at TEXT,
    more TEXT,
    PRIMARY KEY (id),
    CONSTRAINT uq_wbe_logbooks UNIQUE (uuid)
);

CREATE TABLE wbe_limits (
    name VARCHAR(255) NOT NULL,
    account TEXT NOT NULL,
    expires DOUBLE DEFAULT '0' NOT NULL,
    CONSTRAINT pk_wbe_limits PRIMARY KEY (name)
);

CREATE TABLE wbe_pauses (
    pattern VARCHAR(255) NOT NULL,
    reason TEXT,
    sender TEXT,
    paused_at DOUBLE NOT NULL,
    ends_at DOUBLE,
    CONSTRAINT pk_wbe_pauses PRIMARY KEY (pattern)
);

CREATE TABLE wbe_jobs (
    id INTEGER NOT NULL,
    uuid VARCHAR(255) NOT NULL,
    board VARCHAR(255) NOT NULL,
    name TEXT NOT NULL,
    priority SMALLINT NOT NULL,
    details TEXT,
    book_uuid TEXT,
    book_name TEXT,
    owner TEXT,
    owner_until DOUBLE,
    claims BIGINT DEFAULT '0' NOT NULL,
    created DOUBLE NOT NULL,
    updated DOUBLE NOT NULL,
    trashed SMALLINT DEFAULT '0' NOT NULL,
    not_before DOUBLE DEFAULT '0' NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT uq_wbe_jobs UNIQUE (uuid)
);

CREATE INDEX ix_wbe_jobs_ready ON wbe_jobs (board, trashed, not_before, priority, id);

CREATE INDEX ix_wbe_jobs_priority ON wbe_jobs (priority, id);

CREATE TABLE wbe_schedules (
    id INTEGER NOT NULL,
    name VARCHAR(255) NOT NULL,
    definition TEXT NOT NULL,
    revision BIGINT DEFAULT '0' NOT NULL,
    paused SMALLINT DEFAULT '0' NOT NULL,
    next_tick BIGINT NOT NULL,
    due DOUBLE NOT NULL,
    last_tick BIGINT,
    last_flow TEXT,
    wanted TEXT,
    trouble TEXT,
    PRIMARY KEY (id),
    CONSTRAINT uq_wbe_schedules UNIQUE (name)
);

CREATE INDEX ix_wbe_schedules_due ON wbe_schedules (paused, due);

CREATE TABLE wbe_flowdetails (
    id INTEGER NOT NULL,
    uuid VARCHAR(255) NOT NULL,
    book_uuid VARCHAR(255) NOT NULL,
    name TEXT NOT NULL,
    state TEXT,
    meta TEXT,
    more TEXT,
    lease_owner TEXT,
    lease_epoch BIGINT DEFAULT '0' NOT NULL,
    lease_until DOUBLE,
    wish TEXT,
    created DOUBLE DEFAULT '0' NOT NULL,
    updated DOUBLE,
    birth BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT uq_wbe_flowdetails UNIQUE (uuid),
    CONSTRAINT fk_wbe_flowdetails FOREIGN KEY(book_uuid) REFERENCES wbe_logbooks (uuid) ON DELETE CASCADE
);

CREATE INDEX ix_wbe_flowdetails_created ON wbe_flowdetails (created, id);

CREATE INDEX ix_wbe_flowdetails_state ON wbe_flowdetails (state, created, id);

CREATE INDEX ix_wbe_flowdetails_book ON wbe_flowdetails (book_uuid, created, id);

CREATE TABLE wbe_atomdetails (
    id INTEGER NOT NULL,
    uuid VARCHAR(255) NOT NULL,
    flow_uuid VARCHAR(255) NOT NULL,
    kind VARCHAR(16) NOT NULL,
    name TEXT NOT NULL,
    version TEXT,
    state TEXT,
    intention TEXT,
    attempt BIGINT,
    epoch BIGINT,
    meta TEXT,
    results TEXT,
    failure TEXT,
    revert_results TEXT,
    revert_failure TEXT,
    more TEXT,
    changed BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT uq_wbe_atomdetails UNIQUE (uuid),
    CONSTRAINT fk_wbe_atomdetails FOREIGN KEY(flow_uuid) REFERENCES wbe_flowdetails (uuid) ON DELETE CASCADE
);

CREATE INDEX ix_wbe_atomdetails_changed ON wbe_atomdetails (flow_uuid, changed);

CREATE INDEX ix_wbe_atomdetails ON wbe_atomdetails (flow_uuid);

CREATE TABLE wbe_outlines (
    flow_uuid VARCHAR(255) NOT NULL,
    outline BLOB NOT NULL,
    CONSTRAINT pk_wbe_outlines PRIMARY KEY (flow_uuid),
    CONSTRAINT fk_wbe_outlines FOREIGN KEY(flow_uuid) REFERENCES wbe_flowdetails (uuid) ON DELETE CASCADE
);

CREATE TABLE wbe_signals (
    flow_uuid VARCHAR(255) NOT NULL,
    name VARCHAR(255) NOT NULL,
    value TEXT NOT NULL,
    at DOUBLE NOT NULL,
    CONSTRAINT pk_wbe_signals PRIMARY KEY (flow_uuid, name),
    CONSTRAINT fk_wbe_signals FOREIGN KEY(flow_uuid) REFERENCES wbe_flowdetails (uuid) ON DELETE CASCADE
);

CREATE TABLE wbe_itemdetails (
    atom_uuid VARCHAR(255) NOT NULL,
    attempt BIGINT NOT NULL,
    item BIGINT NOT NULL,
    state TEXT,
    value TEXT,
    results TEXT,
    failure TEXT,
    more TEXT,
    changed BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_wbe_itemdetails PRIMARY KEY (atom_uuid, attempt, item),
    CONSTRAINT fk_wbe_itemdetails FOREIGN KEY(atom_uuid) REFERENCES wbe_atomdetails (uuid) ON DELETE CASCADE
);

CREATE TABLE wbe_logs (
    id INTEGER NOT NULL,
    atom_uuid VARCHAR(255) NOT NULL,
    attempt BIGINT NOT NULL,
    item BIGINT NOT NULL,
    logged TEXT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT fk_wbe_logs FOREIGN KEY(atom_uuid) REFERENCES wbe_atomdetails (uuid) ON DELETE CASCADE
);

CREATE INDEX ix_wbe_logs ON wbe_logs (atom_uuid, attempt);

CREATE TABLE wbe_alembic_version (
    version_num VARCHAR(32) NOT NULL,
    oldest VARCHAR(32),
    CONSTRAINT wbe_alembic_version_pkc PRIMARY KEY (version_num)
);

INSERT INTO wbe_alembic_version VALUES ('0001', '0001');
