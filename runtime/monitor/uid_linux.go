package monitor

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"gloved.dev/internal/safefile"
)

// uidLocks is where a root daemon's sessions claim their host users: one
// locked file per user, so that two sessions, of whichever gloved, never share
// one, and a user is free again when its monitor is gone however it went.
const uidLocks = ClaimsDir

// A uidClaim is a host user that is this session's alone.
type uidClaim struct {
	uid  uint32
	lock *safefile.Lock
}

func claimUID(r UIDRange) (*uidClaim, error) {
	if !r.Valid() {
		return nil, fmt.Errorf("the range of session users (%d, %d long) must lie within %d and 2^31", r.First, r.Count, MinUID)
	}
	for _, dir := range []string{filepath.Dir(uidLocks), uidLocks} {
		d, _, err := safefile.MakeOwnerDir(dir)
		if err != nil {
			return nil, err
		}
		d.Close()
	}
	for uid := r.First; uid < r.First+r.Count; uid++ {
		lock, err := safefile.LockFile(filepath.Join(uidLocks, strconv.FormatUint(uint64(uid), 10)))
		switch {
		case err == nil:
			return &uidClaim{uid: uid, lock: lock}, nil
		case !errors.Is(err, safefile.ErrLocked):
			return nil, err
		}
	}
	return nil, fmt.Errorf("all %d session users are in use", r.Count)
}

func (c *uidClaim) release() { _ = c.lock.Unlock() }
