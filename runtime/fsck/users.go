package fsck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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

// strays looks for processes that should have gone with somebody: those of a host
// user whom no monitor claims, and spare monitors whose gloved is gone. Nothing
// on record says which they are, so that they are never signalled.
func (k *check) strays(ctx context.Context) error {
	found, err := k.strayProcesses()
	if err != nil || len(found) == 0 {
		return err
	}
	// What is dying is gone in a moment; a spare has to notice first.
	bound := glance
	for _, f := range found {
		if f.Code == SpareStray {
			bound = patience
		}
	}
	_, err = until(ctx, bound, func() (bool, error) {
		again, err := k.strayProcesses()
		for pid := range found {
			if _, still := again[pid]; !still {
				delete(found, pid)
			}
		}
		return len(found) == 0, err
	})
	for pid, f := range found {
		k.report(f.Code, strconv.Itoa(pid), f.Detail, f.Repair, nil)
	}
	return err
}

func (k *check) strayProcesses() (map[int]Finding, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, nil // no Linux
	}
	defer proc.Close()
	list, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	locks := lockHolders()
	found := map[int]Finding{}
	for _, name := range list {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, ok := readProcess(name)
		if !ok {
			continue
		}
		switch {
		case os.Geteuid() == 0 && k.ours(p.uid):
			claim := filepath.Join(monitor.ClaimsDir, strconv.FormatUint(p.uid, 10))
			if claimed, err := held(claim); err == nil && !claimed {
				found[pid] = Finding{Code: ProcessStray, Detail: fmt.Sprintf("it runs as the session user %d, whom no monitor claims", p.uid),
					Repair: "it is left alone: nothing on record says what it is; look at it and end it"}
			}
		case p.argv0 == monitor.RoleName && p.uid == uint64(os.Geteuid()) && adopted(p.parent) && locks != nil && !locks[pid]: //nolint:gosec // never negative
			found[pid] = Finding{Code: SpareStray, Detail: "a monitor without a session whose gloved is gone",
				Repair: "it is left alone: it holds nothing and goes by itself; if it is stopped, let it go on (kill -CONT), or end it"}
		}
	}
	return found, nil
}

// adopted reports whether a parent is one that takes orphans in, and not a gloved
// that is a container's first process.
func adopted(parent int) bool {
	comm, err := readKernel(filepath.Join("/proc", strconv.Itoa(parent), "comm"))
	return err == nil && (parent == 1 && !bytes.HasPrefix(comm, []byte("glove")) || string(comm) == "systemd\n")
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

// A process is what is looked at of one.
type process struct {
	uid    uint64
	parent int
	argv0  string
}

func readProcess(pid string) (p process, ok bool) {
	status, err := readKernel(filepath.Join("/proc", pid, "status"))
	if err != nil {
		return p, false
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
				return p, false
			}
		case "PPid":
			p.parent, err = strconv.Atoi(fields[0])
		case "Uid":
			p.uid, err = strconv.ParseUint(fields[0], 10, 32)
		}
		if err != nil {
			return p, false
		}
	}
	line, err := readKernel(filepath.Join("/proc", pid, "cmdline"))
	argv0, _, _ := bytes.Cut(line, []byte{0})
	p.argv0 = string(argv0)
	return p, err == nil
}

// lockHolders are the processes that hold the whole of a file other than a claim
// on a host user, which a spare has too: a monitor with a session holds the lock of
// its directory. It is nil where that cannot be told.
func lockHolders() map[int]bool {
	raw, err := readKernel("/proc/locks")
	if err != nil {
		return nil
	}
	claims := claimFiles()
	holders := map[int]bool{}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && !claims[f[5]] {
			if pid, err := strconv.Atoi(f[4]); err == nil {
				holders[pid] = true
			}
		}
	}
	return holders
}

// claimFiles names the files of the claims as /proc/locks does.
func claimFiles() map[string]bool {
	dir, err := os.Open(monitor.ClaimsDir)
	if err != nil {
		return nil
	}
	defer dir.Close()
	list, err := dir.ReadDir(-1)
	if err != nil {
		return nil
	}
	files := map[string]bool{}
	for _, entry := range list {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(monitor.ClaimsDir, entry.Name()), &st) == nil {
			dev := uint64(st.Dev) //nolint:unconvert // int32 on darwin
			files[fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), st.Ino)] = true
		}
	}
	return files
}
