package fsck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gloved.dev/internal/safefile"
	"gloved.dev/runtime/monitor"
)

// claims looks at the claims on this gloved's host users. A claim is a lock; what
// is in its place and cannot be locked keeps sessions from starting.
func (k *check) claims(context.Context) error {
	if os.Geteuid() != 0 {
		return nil // no session has a user of its own
	}
	dir, _, err := safefile.OpenOwnerDir(monitor.ClaimsDir)
	if errors.Is(err, safefile.ErrNotFound) {
		return nil
	}
	if err != nil {
		k.report(ClaimForeign, monitor.ClaimsDir, err.Error(), "no session can start: make it root's, mode 0700, again", nil)
		return nil
	}
	defer dir.Close()
	list, err := names(dir)
	if err != nil {
		return err
	}
	for _, name := range list {
		uid, err := strconv.ParseUint(name, 10, 32)
		if err != nil || !k.ours(uid) {
			continue
		}
		path := filepath.Join(monitor.ClaimsDir, name)
		if _, err := held(path); err != nil {
			k.report(ClaimForeign, path, err.Error(), "no session can start once its turn comes: look at what made it, and remove it", nil)
		}
	}
	return nil
}

func (k *check) ours(uid uint64) bool {
	return uid >= uint64(k.UIDRange.First) && uid < uint64(k.UIDRange.First)+uint64(k.UIDRange.Count)
}

// strays looks for processes of a host user whom no monitor claims. Nothing on record
// says which they are, so that they are never signalled.
func (k *check) strays(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil // no session has a user of its own
	}
	found, err := k.strayProcesses()
	if err != nil || len(found) == 0 {
		return err
	}
	_, err = until(ctx, glance, func() (bool, error) { // what is dying is gone in a moment
		again, err := k.strayProcesses()
		for pid := range found {
			if _, still := again[pid]; !still {
				delete(found, pid)
			}
		}
		return len(found) == 0, err
	})
	for pid, uid := range found {
		k.report(ProcessStray, strconv.Itoa(pid), fmt.Sprintf("it runs as the session user %d, whom no monitor claims", uid),
			"it is left alone: nothing on record says what it is; look at it and end it", nil)
	}
	return err
}

// strayProcesses are the processes of unclaimed users of ours, and their users.
func (k *check) strayProcesses() (map[int]uint64, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, nil // no Linux
	}
	defer proc.Close()
	list, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found := map[int]uint64{}
	for _, name := range list {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		uid, ok := userOf(name)
		if !ok || !k.ours(uid) {
			continue
		}
		claim := filepath.Join(monitor.ClaimsDir, strconv.FormatUint(uid, 10))
		if claimed, err := held(claim); err == nil && !claimed {
			found[pid] = uid
		}
	}
	return found, nil
}

// maxKernelFile bounds what is read of one file of the kernel's.
const maxKernelFile = 16 << 20

// readKernel reads a file in /proc or /sys. Nothing in it carries authority.
func readKernel(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxKernelFile))
}

// userOf is the user of a process that lives.
func userOf(pid string) (uid uint64, ok bool) {
	status, err := readKernel(filepath.Join("/proc", pid, "status"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch name {
		case "State":
			if fields[0] == "Z" || fields[0] == "X" {
				return 0, false
			}
		case "Uid":
			uid, err = strconv.ParseUint(fields[0], 10, 32)
			return uid, err == nil
		}
	}
	return 0, false
}
