package broker

import (
	"fmt"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/strictjson"
)

// Schemas of what a transaction leaves in the workspace.
const (
	journalSchema = "approval.codex.transaction.v1"
	lockSchema    = "approval.codex.lock.v1"
)

// Names inside TransactionDir.
const journalName = "journal.json"

func stagedNew(i int) string { return fmt.Sprintf("new-%d", i) } // new content of change i; after an exchange, the old file
func stagedPre(i int) string { return fmt.Sprintf("pre-%d", i) } // copy of the preimage of change i
func stagedOut(i int) string { return fmt.Sprintf("out-%d", i) } // the file that a delete took out

// maxJournal bounds a journal's text: 128 endpoints with paths, classes and two images, and legs.
const maxJournal = 1 << 20

// A txnJournal is the durable word on a transaction: it is complete, synced and unchanging before
// the first move, and is removed only once every leg has its outcome in the log. From it and the
// workspace alone anybody can tell what happened.
//
// SHA256 is over the canonical text without that member, so that a truncated or edited journal is
// known as such.
type txnJournal struct {
	Schema      string          `json:"schema"`
	Instance    string          `json:"instance"`
	Task        string          `json:"task"`
	PayloadHash string          `json:"payload_hash"`
	Workspace   PayloadRoot     `json:"workspace"`
	Legs        []Leg           `json:"legs"`
	Changes     []journalChange `json:"changes"`
	SHA256      string          `json:"sha256,omitzero"`
}

type journalChange struct {
	Kind      string     `json:"kind"`
	Endpoints []Endpoint `json:"endpoints"`
}

// A lockRecord is the content of the lock: whose transaction this is, for the time in which there
// is no journal (before it is written, and after the outcome).
type lockRecord struct {
	Schema      string `json:"schema"`
	Instance    string `json:"instance"`
	Task        string `json:"task"`
	PayloadHash string `json:"payload_hash"`
	Legs        []Leg  `json:"legs"`
}

func newJournal(instance string, task Task, p *Plan, t *tree) txnJournal {
	o := object(t.id)
	j := txnJournal{Schema: journalSchema, Instance: instance, Task: task.ID(), PayloadHash: p.PayloadHash,
		Workspace: PayloadRoot{Path: t.path, Dev: o.Dev, Ino: o.Ino}, Legs: task.Legs()}
	for i := range p.changes {
		j.Changes = append(j.Changes, journalChange{Kind: p.changes[i].op.Kind, Endpoints: p.changes[i].ends})
	}
	return j
}

func (j txnJournal) encode() ([]byte, error) {
	j.SHA256 = ""
	raw, err := strictjson.Canonical(j)
	if err != nil {
		return nil, err
	}
	j.SHA256 = digest.SHA256Hex(raw)
	return strictjson.Canonical(j)
}

func (j *txnJournal) endpoints() []Endpoint {
	var list []Endpoint
	for i := range j.Changes {
		list = append(list, j.Changes[i].Endpoints...)
	}
	return list
}

// decodeJournal reads a journal and believes nothing of it: it lies in a workspace that others may
// write.
func decodeJournal(data []byte, t *tree) (*txnJournal, error) {
	var j txnJournal
	if err := strictjson.Decode(data, &j, strictjson.Limits{MaxBytes: maxJournal, MaxDepth: 16}); err != nil {
		return nil, err
	}
	again, err := j.encode()
	if err != nil {
		return nil, err
	}
	if string(again) != string(data) {
		return nil, fmt.Errorf("the journal has been changed since it was written")
	}
	root := object(t.id)
	switch {
	case j.Schema != journalSchema:
		return nil, fmt.Errorf("the journal is of another version")
	case j.Workspace != PayloadRoot{Path: t.path, Dev: root.Dev, Ino: root.Ino}:
		return nil, fmt.Errorf("the journal is of another workspace")
	case len(j.Legs) == 0, len(j.Changes) == 0, len(j.Changes) > MaxOperations:
		return nil, fmt.Errorf("the journal names no legs or no changes")
	}
	for i := range j.Changes {
		if err := j.Changes[i].check(); err != nil {
			return nil, err
		}
	}
	return &j, nil
}

func (c *journalChange) check() error {
	count := 1
	if c.Kind == KindMove {
		count = 2
	}
	if _, ok := members[c.Kind]; !ok || len(c.Endpoints) != count {
		return fmt.Errorf("the journal has a change that is none")
	}
	for i := range c.Endpoints {
		if r := checkPath(c.Endpoints[i].Path); r != nil {
			return fmt.Errorf("the journal has a path that is none: %w", r)
		}
	}
	return nil
}

func (l lockRecord) encode() ([]byte, error) { return strictjson.Canonical(l) }

func decodeLock(data []byte) (*lockRecord, error) {
	var l lockRecord
	if err := strictjson.Decode(data, &l, strictjson.Limits{MaxBytes: maxJournal, MaxDepth: 8}); err != nil {
		return nil, err
	}
	if l.Schema != lockSchema || len(l.Legs) == 0 {
		return nil, fmt.Errorf("the lock is not a broker's of this version")
	}
	return &l, nil
}
