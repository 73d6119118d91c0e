package journal

import (
	"fmt"

	"gloved.dev/internal/safefile"
)

// identify returns the identity of the open file after proving that the path
// still names it.
func identify(fsys FS, f File, path string) (safefile.Identity, error) {
	id, err := f.Identity()
	if err != nil {
		return id, &Error{Code: CodeIO, Detail: "fstat", Err: err}
	}
	named, err := fsys.Stat(path)
	if err != nil {
		return id, &Error{Code: CodeChanged, Detail: "the path no longer names the journal", Err: err}
	}
	return id, sameFile(named, id)
}

// sameFile compares everything but size and times: replacement by another file,
// a second link and a change of owner or mode all mean that somebody else can
// reach, or has redirected, what we write.
func sameFile(a, b safefile.Identity) error {
	switch {
	case a.Dev != b.Dev || a.Ino != b.Ino:
		return changed("it is another file")
	case a.Mode != b.Mode:
		return changed("its mode changed")
	case a.UID != b.UID || a.GID != b.GID:
		return changed("its owner changed")
	case a.Nlink != b.Nlink:
		return changed("its number of links changed")
	}
	return nil
}

func changed(what string) error { return &Error{Code: CodeChanged, Detail: what} }

// Check compares the file with what the writer left: device, inode, mode, owner,
// links, size, and time of last modification. A difference poisons the journal.
// Stores on a journal call it before they answer from memory.
func (j *Journal) Check() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing {
		return ErrClosed
	}
	return j.check()
}

// check does so under the lock. While a commit is under way the size may be
// anything between the durable one and the one it will have.
func (j *Journal) check() error {
	if j.failed != nil {
		return j.failed
	}
	now, err := identify(j.o.FS, j.f, j.path)
	if err == nil {
		err = sameFile(j.id, now)
	}
	if err == nil {
		size := int64(now.Size)
		switch {
		case size < j.size || size > j.size+j.inflight:
			err = changed(fmt.Sprintf("its size is %d and should be %d", size, j.size))
		case j.inflight == 0 && now.MtimeNS != j.id.MtimeNS:
			err = changed("it was modified by somebody else")
		}
	}
	if err != nil {
		return j.poisonLocked(err)
	}
	return nil
}

func (j *Journal) poison(cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.poisonLocked(cause)
}

// poisonLocked makes every later operation fail; the first cause stays.
func (j *Journal) poisonLocked(cause error) error {
	if j.failed == nil {
		j.failed = &Error{Code: CodePoisoned, Detail: "close and open the journal again", Err: cause}
	}
	return j.failed
}
