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
	bySession := map[string]session.Record{}
	for _, r := range k.records {
		if group := runtime.PlaceOf(r).Group; group != "" {
			bySession[group] = r
		}
	}
	for _, name := range names {
		id, err := host.Lookup(name)
		half := errors.Is(err, cgroup.ErrNotFound) || errors.Is(err, cgroup.ErrMismatch)
		if err != nil && !half {
			return err
		}
		r, known := bySession[name]
		if !known && !ident.MatID(strings.TrimPrefix(name, prefix)) {
			k.report(GroupForeign, name, "it has our tag, and none of ours can have this name", "it is left alone: look at what made it", nil)
			continue
		}
		k.group(name, r, known, id, half)
	}
	return nil
}

// group judges one control group, which r, where that is known, names as its session's;
// half says that parts of it are gone.
func (k *check) group(name string, r session.Record, known bool, now cgroup.Identity, half bool) {
	active := r.State == session.Starting || r.State == session.Running || r.State == session.Stopping
	switch {
	case !known && k.strayed:
		// It may be what that monitor has, which is left alone.
	case !known:
		k.report(GroupOrphan, name, "no session on record could need it", "end what is in it and remove it", destroy(name, now, half))
	case !half && r.Cgroup != nil && (now.Dev != r.Cgroup.Dev || now.Ino != r.Cgroup.Ino):
		k.report(GroupForeign, name, fmt.Sprintf("session %s was in a control group of this name with another identity", r.SessionID),
			"it is left alone, with all that is in it: look at what made it", nil)
	case active || k.lives[r.SessionID]:
		// Its monitor's, or ended with the session.
	default:
		k.report(GroupOrphan, name, "session "+r.SessionID+" is over", "end what is in it and remove it", destroy(name, now, half))
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
