package broker

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/safefile"
)

// Levels of custody.
const (
	// CustodyExclusive: the lock is held, and by owner and mode nobody else can write the workspace
	// root or a directory the transaction touches.
	CustodyExclusive = "os-exclusive"
	// CustodyAdvisory: the lock is held, and that second claim is false or could not be made.
	CustodyAdvisory = "advisory"
)

// ACLUnproven is in every report of custody: owner and mode say nothing about access lists.
const ACLUnproven = "acl-unproven"

// Custody is what was proved while the lock was held.
type Custody struct {
	Level string   `json:"level"`
	Notes []string `json:"notes"`
}

// judgeCustody asks owner and mode of the directories given, the root first.
func judgeCustody(dirs []safefile.Identity) *Custody {
	c := &Custody{Level: CustodyExclusive, Notes: []string{ACLUnproven}}
	for _, d := range dirs {
		if d.UID != effectiveUser() || d.Mode&0o022 != 0 {
			c.Level = CustodyAdvisory
		}
	}
	return c
}

// A lock is the workspace's lock, held. It is two things: a name that excludes every other broker
// until somebody removes it, and an flock on that file, which ends with its holder. The second
// tells a holder that works from one that died, and is never a reason to take the name away from
// the first.
type lock struct {
	t  *tree
	f  *os.File
	id safefile.Identity
}

// takeLock creates the lock. fs.ErrExist means that there is one.
func takeLock(t *tree, rec lockRecord) (*lock, error) {
	text, err := rec.encode()
	if err != nil {
		return nil, err
	}
	f, err := openAt(t.root, LockName, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	l := &lock{t: t, f: f}
	if err := l.fill(text); err != nil {
		return nil, errors.Join(err, l.release())
	}
	return l, nil
}

func (l *lock) fill(text []byte) (err error) {
	if l.id, err = safefile.Stat(l.f); err != nil {
		return err
	}
	if err := safefile.Flock(l.f); err != nil {
		return err
	}
	if _, err := l.f.Write(text); err != nil {
		return err
	}
	return errors.Join(l.f.Sync(), l.t.root.Sync())
}

// release removes the lock, if the name is still ours, and lets go of it.
func (l *lock) release() error {
	defer l.f.Close()
	d := &dir{f: l.t.root}
	now, err := d.stat(LockName)
	if err != nil {
		return err
	}
	if now.Ino != l.id.Ino || now.Dev != l.id.Dev {
		return errChanged
	}
	if err := unix.Unlinkat(int(l.t.root.Fd()), LockName, 0); err != nil {
		return err
	}
	return l.t.root.Sync()
}

// keep lets go of the lock and leaves it where it is.
func (l *lock) keep() { l.f.Close() }

var errLive = errors.New("a broker is at work")

// openLock opens a lock that somebody left. errLive means that its holder still works;
// fs.ErrNotExist, that there is none.
func openLock(t *tree) (*lock, *lockRecord, error) {
	f, err := openAt(t.root, LockName, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	l := &lock{t: t, f: f}
	rec, err := l.adopt()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return l, rec, nil
}

func (l *lock) adopt() (*lockRecord, error) {
	id, err := safefile.Stat(l.f)
	if err != nil {
		return nil, err
	}
	l.id = id
	if id.Mode&unix.S_IFMT != unix.S_IFREG || id.UID != effectiveUser() || id.Nlink != 1 || id.Size > maxJournal {
		return nil, errors.New("the lock is not a broker's")
	}
	if err := safefile.Flock(l.f); err != nil {
		return nil, errors.Join(errLive, err)
	}
	// Its holder may have removed the name between our open and our flock.
	if now, err := (&dir{f: l.t.root}).stat(LockName); err != nil || now.Ino != id.Ino || now.Dev != id.Dev {
		return nil, errLive
	}
	text, err := io.ReadAll(io.LimitReader(l.f, maxJournal+1))
	if err != nil {
		return nil, err
	}
	return decodeLock(text)
}

// present tells whether either of the broker's names is in the workspace.
func (t *tree) present() (lock, txn bool, err error) {
	d := &dir{f: t.root}
	if _, err = d.stat(LockName); err == nil {
		lock = true
	} else if !errors.Is(err, errNotThere) {
		return false, false, err
	}
	if _, err = d.stat(TransactionDir); err == nil {
		return lock, true, nil
	}
	if errors.Is(err, errNotThere) {
		err = nil
	}
	return lock, false, err
}

func statFile(f *os.File) (safefile.Identity, error) { return safefile.Stat(f) }

func exists(err error) bool { return errors.Is(err, fs.ErrExist) }
