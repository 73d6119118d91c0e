package fsck

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/journal/session"
	"gloved.dev/runtime"
	"gloved.dev/runtime/cgroup"
)

// groups compares the control groups that bear this root's tag with the sessions.
// Those of another gloved bear another tag and are not looked at. That a live
// session's group is gone is not looked for: its monitor counts by it, and ends the
// session at once.
func (k *check) groups(context.Context) error {
	if k.root == nil || k.store == nil {
		return nil
	}
	host := k.groupHost()
	if host == nil {
		return nil
	}
	defer host.Close()
	prefix := runtime.GroupPrefix(k.rootID)
	names, err := host.Names(prefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		id, err := host.Lookup(name)
		half := errors.Is(err, cgroup.ErrNotFound) || errors.Is(err, cgroup.ErrMismatch)
		if err != nil && !half {
			return err
		}
		k.group(name, strings.TrimPrefix(name, prefix), id, half)
	}
	return nil
}

// group judges one control group; half says that parts of it are gone.
func (k *check) group(name, id string, now cgroup.Identity, half bool) {
	r, known := k.byID[id]
	active := r.State == session.Starting || r.State == session.Running || r.State == session.Stopping
	recorded := known && r.Cgroup != nil
	switch {
	case !ident.MatID(id):
		k.report(GroupForeign, name, "it has our tag, and no session can have this name", "it is left alone: look at what made it", nil)
	case recorded && !half && (now.Dev != r.Cgroup.Dev || now.Ino != r.Cgroup.Ino):
		k.report(GroupForeign, name, fmt.Sprintf("session %s was in a control group of this name with another identity", id),
			"it is left alone, with all that is in it: look at what made it", nil)
	case active || k.lives[id]:
		// Its monitor's, or ended with the session.
	case recorded:
		k.report(GroupOrphan, name, "session "+id+" is over", "end what is in it and remove it", destroy(name, now, half))
	default:
		k.report(GroupOrphan, name, "no session on record could need it", "end what is in it and remove it", destroy(name, now, half))
	}
}

// destroy removes the control group that was found, and no other.
func destroy(name string, id cgroup.Identity, half bool) func(context.Context, *repairer) (string, error) {
	return func(ctx context.Context, _ *repairer) (string, error) {
		host, err := cgroup.Detect()
		if err != nil {
			return "", err
		}
		defer host.Close()
		if half { // no identity is left to compare
			return "removed what was left of it", host.Sweep(ctx, name)
		}
		g, err := host.Open(name, id)
		if errors.Is(err, cgroup.ErrNotFound) {
			return "it was gone", nil
		}
		if err != nil {
			return "", err
		}
		defer g.Close()
		return "removed, with what was in it", g.Destroy(ctx)
	}
}
