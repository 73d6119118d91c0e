package broker

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A State is what reading a workspace back proves about a transaction.
type State string

// States.
const (
	StateNone   State = "none"   // there is no transaction
	StateBefore State = "before" // every endpoint is as it was
	StateAfter  State = "after"  // every endpoint is as proposed
	StateMixed  State = "mixed"  // anything else, foreign content included
)

// readBack compares every endpoint with its two states, by a fresh walk from the root. An endpoint
// that cannot be read is neither.
func readBack(t *tree, ends []Endpoint) State {
	t.forget()
	defer t.forget()
	before, after := true, true
	for i := range ends {
		e := &ends[i]
		found, known := t.observe(e)
		before = before && known && same(found, e.Before)
		after = after && known && same(found, e.After)
	}
	switch {
	case after:
		return StateAfter
	case before:
		return StateBefore
	}
	return StateMixed
}

// observe reads what is at an endpoint: an image, or nil for absence. known is false for anything
// that is neither (a link, a directory, a file of another size, an unreadable place).
func (t *tree) observe(e *Endpoint) (found *Image, known bool) {
	parent, name := split(e.Path)
	d, err := t.openPath(parent)
	if errors.Is(err, unix.ENOENT) {
		return nil, true
	}
	if err != nil {
		return nil, false
	}
	defer d.close()
	id, err := d.stat(name)
	if errors.Is(err, errNotThere) {
		return nil, true
	}
	if err != nil || judge(e.Path, id) != nil {
		return nil, false
	}
	f, err := d.read(name, id)
	if err != nil {
		return nil, false
	}
	return &Image{SHA256: f.sum, Size: int64(id.Size), Mode: id.Mode & 0o777}, true
}

func same(a, b *Image) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// openPath opens the directory rel by a walk of its own, without listing anything.
func (t *tree) openPath(rel string) (*dir, error) {
	f, err := openDirAt(t.root, ".")
	if err != nil {
		return nil, err
	}
	d := &dir{f: f}
	for rel != "" && err == nil {
		var name string
		if name, rel = head(rel); name != "" {
			var next *os.File
			next, err = openDirAt(d.f, name)
			d.f.Close()
			d.f = next
		}
	}
	if err != nil {
		return nil, err
	}
	if d.id, err = statFile(d.f); err != nil || d.id.Dev != t.id.Dev {
		d.close()
		return nil, errors.Join(err, unix.EXDEV)
	}
	return d, nil
}

func (d *dir) close() { d.f.Close() }

// head takes the first component off a path.
func head(rel string) (first, rest string) {
	for i := range len(rel) {
		if rel[i] == '/' {
			return rel[:i], rel[i+1:]
		}
	}
	return rel, ""
}
