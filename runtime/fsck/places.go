package fsck

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/session"
	"gloved.dev/runtime"
	"gloved.dev/runtime/monitor"
	"gloved.dev/runtime/workspace"
)

// maxEntries bounds how many names of one directory are looked at.
const maxEntries = 10000

// removing begins the names under which workspace.RemoveTree moves deep
// directories on their way out.
const removing = ".removing-"

func names(dir *os.File) ([]string, error) {
	fresh, err := os.Open(dir.Name()) // the held one has a read position
	if err != nil {
		return nil, err
	}
	defer fresh.Close()
	list, err := fresh.Readdirnames(maxEntries + 1)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case len(list) > maxEntries:
		return nil, fmt.Errorf("%s holds more than %d entries", dir.Name(), maxEntries)
	}
	return list, nil
}

// directories compares what is in the materialization root with the sessions.
func (k *check) directories(ctx context.Context) error {
	if k.root == nil || k.store == nil {
		return nil
	}
	list, err := names(k.root)
	if err != nil {
		return err
	}
	for _, name := range list {
		path := filepath.Join(k.Root, name)
		switch {
		case strings.HasPrefix(name, removing):
			k.report(RemovalUnfinished, path, "a removal was cut short", "remove it", k.removeTree(name))
		case strings.HasPrefix(name, monitor.GroundPrefix):
			if err := k.ground(ctx, name, path); err != nil {
				return err
			}
		case !strings.HasPrefix(name, runtime.DirPrefix):
		default:
			if err := k.directory(ctx, name, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// ground judges what was made ahead of need, for a session that did not come. It goes
// by itself when its gloved does.
func (k *check) ground(ctx context.Context, name, path string) error {
	dir, _, err := safefile.OpenOwnerDir(path)
	switch {
	case errors.Is(err, safefile.ErrNotFound):
		return nil // it went meanwhile
	case err != nil:
		k.report(DirectoryForeign, path, "it has the name of a directory made for a session to come and is not as we make them", "it is left alone: look at what made it, and move it away", nil)
		return nil
	}
	defer dir.Close()
	free, err := k.released(ctx, path)
	if err != nil {
		return err
	}
	if !free {
		k.strayed = true
		k.report(SpareStray, path, "a monitor without a session lives there, and its gloved is gone",
			"it is left alone, and goes by itself; if it is stopped, let go on (kill -CONT), or end, the process that holds "+filepath.Join(path, monitor.LockName), nil)
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		k.report(DirectoryOrphan, path, "it was made for a session that did not come", "remove it", k.removeTree(name))
	}
	return nil
}

// released waits, patiently, until no monitor holds the directory at path.
func (k *check) released(ctx context.Context, path string) (bool, error) {
	return until(ctx, patience, func() (bool, error) {
		alive, err := held(filepath.Join(path, monitor.LockName))
		return !alive, err
	})
}

// idOf takes a session directory's name apart; "" means that it is none.
func idOf(name string) string {
	_, id, _ := strings.Cut(strings.TrimPrefix(name, runtime.DirPrefix), "-")
	if !ident.MatID(id) || runtime.DirName(id) != name {
		return ""
	}
	return id
}

// directory judges one entry of the root that has a session directory's prefix.
func (k *check) directory(ctx context.Context, name, path string) error {
	id := idOf(name)
	dir, _, err := safefile.OpenOwnerDir(path)
	if err == nil {
		defer dir.Close()
	}
	r, known := k.byID[id]
	switch {
	case errors.Is(err, safefile.ErrNotFound):
		return nil // it went meanwhile
	case id == "" || err != nil && !k.lives[id]:
		k.report(DirectoryForeign, path, "it has the name of a session's directory and is not as we make them", "it is left alone: look at what made it, and move it away", nil)
		return nil
	case known && r.State != session.Created && r.State != session.Preparing && !r.State.Terminal():
		return nil // sessions has judged it
	}
	gone, err := k.released(ctx, path)
	switch {
	case err != nil:
		return err
	case !gone:
		k.lives[id], k.strayed = true, true
		k.report(MonitorStray, path, "a monitor lives there, and no session that is on record needs it",
			"it is left alone with all it has: nothing proves what it is; look at the process that holds "+filepath.Join(path, monitor.LockName), nil)
	case known && r.State.Terminal():
		k.socket(filepath.Join(path, monitor.SocketName), "session "+id+" is over")
	default:
		k.report(DirectoryOrphan, path, "no session on record needs it", "remove it", k.removeTree(name))
	}
	return nil
}

// removeTree removes an entry of the root, as cleanup does.
func (k *check) removeTree(name string) func(context.Context, *repairer) (string, error) {
	return func(_ context.Context, r *repairer) (string, error) {
		root, _, err := safefile.OpenOwnerDir(r.Root)
		if err != nil {
			return "", err
		}
		defer root.Close()
		return "removed", workspace.RemoveTree(root, name)
	}
}

// runtimeFiles looks at what a running gloved has in the state directory: none
// runs, as its lock is ours.
func (k *check) runtimeFiles(context.Context) error {
	for _, path := range k.Sockets {
		k.socket(path, "no gloved serves it")
	}
	for _, path := range k.Notes {
		if _, err := os.Lstat(path); err == nil {
			k.report(NoteStale, path, "the gloved that it names is gone", "remove it", func(context.Context, *repairer) (string, error) {
				f, _, err := safefile.OpenOwner(path, os.O_RDONLY, 0)
				if err != nil {
					return "", err
				}
				return "removed", errors.Join(f.Close(), os.Remove(path))
			})
		}
	}
	return nil
}

// socket reports a socket that nobody listens on, if there is one.
func (k *check) socket(path, why string) {
	id, err := stale(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		k.report(SocketForeign, path, err.Error(), "it is left alone: look at what made it, and move it away", nil)
	default:
		k.report(SocketOrphan, path, why, "remove it", func(context.Context, *repairer) (string, error) {
			switch again, err := stale(path); {
			case errors.Is(err, fs.ErrNotExist):
				return "it was gone", nil
			case err != nil:
				return "", err
			case again != id:
				return "", errors.New("another took its place")
			}
			return "removed", os.Remove(path)
		})
	}
}

// stale identifies a socket of ours on which nobody listens. Anything else is an
// error.
func stale(path string) ([2]uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return [2]uint64{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Uid != uint32(os.Geteuid()) || st.Mode&0o7777 != 0o600 { //nolint:gosec // never negative
		return [2]uint64{}, errors.New("it has our socket's name and is no socket of ours")
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return [2]uint64{}, err
	}
	defer dir.Close()
	if err := knock(dir, filepath.Base(path)); !errors.Is(err, unix.ECONNREFUSED) {
		return [2]uint64{}, fmt.Errorf("somebody may listen there: %w", err)
	}
	return [2]uint64{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // int32 on darwin
}

// mounts looks for mounts below the root. We make none there: what sessions see
// are detached mounts, descriptors of their monitors, which no mount table shows.
func (k *check) mounts(context.Context) error {
	if k.Root == "" {
		return nil
	}
	f, err := os.Open("/proc/self/mountinfo")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no Linux
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxKernelFile))
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if point := unescape(fields[4]); point != k.Root && ident.Within(point, k.Root) {
			k.report(MountFound, point, "a mount below the materialization root, where gloved makes none", "it is left alone: umount "+point+" if you know it", nil)
		}
	}
	return lines.Err()
}

// unescape undoes the kernel's octal escapes of white space and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// loops looks for loop devices on our files. We use none.
func (k *check) loops(context.Context) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, file := range files {
		raw, err := readKernel(file)
		if err != nil {
			continue // it was detached meanwhile
		}
		backing := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), " (deleted)")
		if k.Root != "" && ident.Within(backing, k.Root) || backing == k.Store || backing == k.Journal {
			device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))
			k.report(LoopFound, device, "a loop device on "+backing+", of which gloved makes none", "it is left alone: losetup -d "+device+" if you know it", nil)
		}
	}
	return nil
}
