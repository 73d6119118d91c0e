package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/safefile"
)

// A transaction's life, and what a crash leaves at each point:
//
//	lock taken        lock                    nothing has moved
//	staged            lock, staged files      nothing has moved
//	journal written   lock, staged, journal   the journal and the workspace tell
//	moved, read back  lock, staged, journal   the journal and the workspace tell
//	outcome logged    lock, staged, journal   the log tells
//	staged removed    lock, journal           the log tells
//	journal removed   lock                    the log tells
//	lock removed      nothing
//
// So a lock without a journal is told apart by the log: legs without an outcome mean that nothing
// has moved, because the journal is durable before the first move and goes only after the outcome.
//
// A file is never without a whole copy: a replacement swaps it with the staged one, a delete and a
// move only rename it, and a copy of every preimage is durable before.

// mover is how files move; a test puts one in that lies.
type mover struct {
	renameNew func(from *os.File, name string, to *os.File, newName string) error
	exchange  func(a *os.File, name string, b *os.File, other string) error
}

// A txn is a transaction in progress, under the lock.
type txn struct {
	t     *tree
	plan  *Plan
	stage *os.File // TransactionDir
	step  func(Step) error
	mover mover
}

// makeStage makes the staging directory, on the workspace's filesystem because a rename needs that.
func (x *txn) makeStage() error {
	root := int(x.t.root.Fd())
	if err := unix.Mkdirat(root, TransactionDir, 0o700); err != nil {
		return os.NewSyscallError("mkdir", err)
	}
	d, err := openDirAt(x.t.root, TransactionDir)
	if err != nil {
		// Nothing is in it yet, and without a descriptor nobody would take it away.
		return errors.Join(err, unix.Unlinkat(root, TransactionDir, unix.AT_REMOVEDIR))
	}
	x.stage = d
	if err := d.Chmod(0o700); err != nil { // the umask may have narrowed it
		return err
	}
	id, err := safefile.Stat(d)
	if err != nil {
		return err
	}
	if id.Dev != x.t.id.Dev {
		return unix.EXDEV
	}
	return errors.Join(x.step(StepStaging), x.t.root.Sync())
}

// fill writes new contents and copies of preimages, and makes them durable.
func (x *txn) fill() error {
	for i := range x.plan.changes {
		c := &x.plan.changes[i]
		if c.after != nil {
			if err := x.write(stagedNew(i), c.after, c.ends[0].After.Mode, c); err != nil {
				return err
			}
		}
		if c.before != nil {
			if err := x.write(stagedPre(i), c.before, 0o600, nil); err != nil {
				return err
			}
		}
	}
	return x.stage.Sync()
}

// write makes one staged file. A new image takes the group of the file it replaces, and must have
// no attributes of its own: a default access list of the directory would have given it some.
func (x *txn) write(name string, data []byte, mode uint32, c *change) error {
	f, err := openAt(x.stage, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if c != nil && c.before != nil {
		if err := f.Chown(-1, int(c.gid)); err != nil {
			return err
		}
	}
	if err := f.Chmod(fs.FileMode(mode)); err != nil {
		return err
	}
	if c != nil {
		if err := plainAttributes(f); err != nil {
			return err
		}
	}
	return f.Sync()
}

func (x *txn) writeJournal(j txnJournal) error {
	text, err := j.encode()
	if err != nil {
		return err
	}
	if err := x.write(journalName, text, 0o600, nil); err != nil {
		return err
	}
	// Both directories: the journal's name, and the name of the directory it is in.
	return errors.Join(x.stage.Sync(), x.t.root.Sync())
}

// move applies change i. It moves only between directories that are, at this moment, those that
// were planned, and undoes at once what turns out to have moved another file than planned.
func (x *txn) move(i int) error {
	c := &x.plan.changes[i]
	dirs, err := x.parents(c)
	if err != nil {
		return err
	}
	defer closeAll(dirs)
	_, name := split(c.ends[0].Path)
	var at *os.File // where the planned file is now, and under which name
	switch c.op.Kind {
	case KindCreate:
		return x.mover.renameNew(x.stage, stagedNew(i), dirs[0].f, name)
	case KindReplace:
		if err := x.mover.exchange(x.stage, stagedNew(i), dirs[0].f, name); err != nil {
			return err
		}
		at, name = x.stage, stagedNew(i)
	case KindDelete:
		if err := x.mover.renameNew(dirs[0].f, name, x.stage, stagedOut(i)); err != nil {
			return err
		}
		at, name = x.stage, stagedOut(i)
	default:
		_, newName := split(c.ends[1].Path)
		if err := x.mover.renameNew(dirs[0].f, name, dirs[1].f, newName); err != nil {
			return err
		}
		at, name = dirs[1].f, newName
	}
	if err := x.expect(at, name, c); err != nil {
		return errors.Join(err, x.undo(i))
	}
	return nil
}

// expect checks that what was moved is the file that was planned, with the content that the grant
// was given for: whoever wrote into it after the last look under the lock does not lose that.
func (x *txn) expect(d *os.File, name string, c *change) error {
	from := &dir{f: d}
	id, err := from.stat(name)
	if err != nil {
		return err
	}
	planned := c.ends[0]
	if id.Dev != planned.object.Dev || id.Ino != planned.object.Ino || id.Nlink != 1 || id.Mode != planned.object.Mode ||
		id.UID != planned.object.UID || id.Size != planned.object.Size {
		return errChanged
	}
	f, err := from.read(name, id)
	if err != nil {
		return err
	}
	if f.sum != planned.Before.SHA256 {
		return errChanged
	}
	return nil
}

// undo takes change i back, if it happened.
func (x *txn) undo(i int) error {
	c := &x.plan.changes[i]
	dirs, err := x.parents(c)
	if err != nil {
		return err
	}
	defer closeAll(dirs)
	_, name := split(c.ends[0].Path)
	switch c.op.Kind {
	case KindCreate:
		return x.mover.renameNew(dirs[0].f, name, x.stage, stagedNew(i))
	case KindReplace:
		return x.mover.exchange(x.stage, stagedNew(i), dirs[0].f, name)
	case KindDelete:
		return x.mover.renameNew(x.stage, stagedOut(i), dirs[0].f, name)
	}
	_, newName := split(c.ends[1].Path)
	return x.mover.renameNew(dirs[1].f, newName, dirs[0].f, name)
}

// rollBack takes the first n changes back, the last first, as far as the workspace shows that they
// happened. Its errors are for the log; whether it worked is read from the workspace.
func (x *txn) rollBack(n int) error {
	var errs []error
	for i := n - 1; i >= 0; i-- {
		// Foreign content counts as neither state: it is not touched, whoever wrote it.
		if readBack(x.t, x.plan.changes[i].ends) != StateAfter {
			continue
		}
		if err := x.undo(i); err != nil {
			errs = append(errs, fmt.Errorf("change %d: %w", i, err))
		}
	}
	return errors.Join(append(errs, x.sync())...)
}

// parents opens the directories of a change and checks that they are those of the plan.
func (x *txn) parents(c *change) ([]*dir, error) {
	var dirs []*dir
	for i := range c.ends {
		parent, _ := split(c.ends[i].Path)
		d, err := x.t.openPath(parent)
		if err == nil {
			dirs = append(dirs, d)
			if d.id.Ino != c.ends[i].parent.Ino || d.id.Dev != c.ends[i].parent.Dev {
				err = errChanged
			}
		}
		if err != nil {
			closeAll(dirs)
			return nil, err
		}
	}
	return dirs, nil
}

func closeAll(dirs []*dir) {
	for _, d := range dirs {
		d.close()
	}
}

// sync makes every directory that a move changed durable.
func (x *txn) sync() error {
	done := map[string]bool{}
	errs := []error{x.stage.Sync()}
	for _, e := range x.plan.Endpoints() {
		parent, _ := split(e.Path)
		if done[parent] {
			continue
		}
		done[parent] = true
		d, err := x.t.openPath(parent)
		if err == nil {
			err = d.f.Sync()
			d.close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// run moves everything and returns the state that reading back proves. failure is why a move was
// not made, for a person to read; it decides nothing.
func (x *txn) run() (state State, failure error) {
	moved, synced := 0, false
	for i := range x.plan.changes {
		moved = i + 1
		if failure = x.move(i); failure == nil {
			failure = x.step(StepMoved)
		}
		if failure != nil {
			break
		}
	}
	if failure == nil {
		failure = x.sync()
		synced = failure == nil
	}
	if failure == nil {
		failure = x.step(StepSynced)
	}
	state = readBack(x.t, x.plan.Endpoints())
	if state == StateAfter && (synced || x.sync() == nil) {
		return state, failure
	}
	if err := x.rollBack(moved); err != nil {
		failure = errors.Join(failure, fmt.Errorf("taking back: %w", err))
	}
	return readBack(x.t, x.plan.Endpoints()), failure
}

// clear removes the staging directory, the journal last. What is in it and not a broker's stays,
// and with it the directory.
func clear(t *tree, step func(Step) error) error {
	d, err := openDirAt(t.root, TransactionDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if stagedName(name) {
			if err := unix.Unlinkat(int(d.Fd()), name, 0); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(d.Sync(), step(StepCleared)); err != nil {
		return err
	}
	if slices.Contains(names, journalName) {
		if err := unix.Unlinkat(int(d.Fd()), journalName, 0); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(int(t.root.Fd()), TransactionDir, unix.AT_REMOVEDIR); err != nil {
		return err
	}
	return errors.Join(t.root.Sync(), step(StepJournalRemoved))
}

func stagedName(name string) bool {
	kind, number, ok := strings.Cut(name, "-")
	return ok && slices.Contains([]string{"new", "pre", "out"}, kind) && len(number) <= 2 &&
		strings.Trim(number, "0123456789") == ""
}
