package runtime

import (
	"context"
	"errors"

	"gloved.dev/internal/safefile"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/cgroup"
)

// A Place is what one session has on the host, by the names this package gives.
type Place struct {
	Dir   string // its directory's name below the materialization root
	Group string // its control group's name, "" before its start was recorded
	Key   string // what its monitor proves itself by; as private as the record
}

// PlaceOf returns where a session's record says that it is.
func PlaceOf(rec session.Record) Place {
	return Place{Dir: dirName(rec.SessionID), Group: rec.Monitor[locatorCgroup], Key: rec.Monitor[locatorKey]}
}

// DirPrefix begins the name of every session's directory, DirName is the whole.
const DirPrefix = dirPrefix

// DirName is the name of a session's directory below the materialization root.
func DirName(id string) string { return dirName(id) }

// GroupPrefix begins the names of the control groups of the sessions below a
// materialization root; whose one is, the sessions' records say.
func GroupPrefix(root safefile.Identity) string { return groupPrefix(root) }

// ProcessOf is a recorded process as the control groups' package names it.
func ProcessOf(p session.ProcessIdentity) cgroup.ProcessIdentity { return observed(p) }

// Mend takes one session to where Reconcile would, without having heard of a
// controller: for a repair by the host's owner while no gloved serves anybody,
// so that no controller is looking at the head of the receipts. The receipts must
// have been opened by a page. A session whose monitor proves itself goes on, and
// what cannot be proven is an error and touched by nothing.
func (e *Executor) Mend(ctx context.Context, id string) error {
	e.starting.Lock()
	defer e.starting.Unlock()
	rec, err := e.Store.Get(id)
	switch {
	case err != nil, rec.State.Terminal(), rec.State == session.Created:
		return err
	case rec.State == session.Preparing:
		if now := e.Clock.Now().UnixMilli(); rec.AuthorizationExpired(uint64(max(now, 0))) {
			_, err = e.Store.MarkFailed(ctx, internalKey("expired"), id, session.AuthorizationExpired)
		}
		return err
	}
	client, _, err := e.reach(ctx, rec)
	if errors.Is(err, &Error{Code: CodeVersion}) {
		return &issueError{IssueVersion, err}
	}
	if err != nil {
		return &issueError{IssueSilent, err}
	}
	h := newHandle(id, client)
	defer h.close()
	if !h.over() {
		return nil
	}
	if err := e.record(ctx, rec, h); err != nil {
		return err
	}
	if client != nil {
		err = client.Finish(ctx)
	}
	return errors.Join(err, e.destroyGroup(ctx, rec))
}
