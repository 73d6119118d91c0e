package journal_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"gloved.dev/internal/safefile"
	"gloved.dev/journal"
)

var (
	errCrashed = errors.New("the machine has crashed")
	errFault   = errors.New("injected fault")
)

// A disk is a file system in memory that knows what would survive a crash: each
// file has the bytes everybody sees and the bytes that were synced, and so has
// the directory. Every operation that changes something is counted, and can be
// the one at which the machine dies or the device fails.
type disk struct {
	mu      sync.Mutex
	names   map[string]*inode // what everybody sees
	durable map[string]*inode // what was synced
	nextIno uint64
	clock   int64

	ops   int
	crash int // the operation at which the machine dies; 0 never
	fail  int // the operation that fails; 0 never
	kinds []string
	syncs int
}

type inode struct {
	ino           uint64
	live, durable []byte
	mtime         int64
	locked        bool
}

func newDisk() *disk {
	return &disk{names: map[string]*inode{}, durable: map[string]*inode{}}
}

// op counts an operation and says whether it happens, and how: partly is true
// when a write is to be cut short.
func (d *disk) op(kind string) (partly bool, err error) {
	d.ops++
	d.kinds = append(d.kinds, kind)
	switch {
	case d.crash != 0 && d.ops > d.crash:
		return false, errCrashed
	case d.crash != 0 && d.ops == d.crash:
		return true, errCrashed
	case d.ops == d.fail:
		return true, errFault
	}
	return false, nil
}

func (d *disk) Open(path string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[path]
	if n == nil {
		return nil, &safefile.Error{Code: safefile.CodeNotFound, Path: path}
	}
	return d.lock(n, path)
}

func (d *disk) lock(n *inode, path string) (journal.File, error) {
	if n.locked {
		return nil, &safefile.Error{Code: safefile.CodeLocked, Path: path}
	}
	n.locked = true
	return &memFile{d, n}, nil
}

func (d *disk) Create(path string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[path] != nil {
		return nil, &safefile.Error{Code: safefile.CodeExists, Path: path}
	}
	if _, err := d.op("create"); err != nil {
		return nil, err
	}
	d.nextIno++
	n := &inode{ino: d.nextIno}
	d.names[path] = n
	return d.lock(n, path)
}

func (d *disk) Stat(path string) (safefile.Identity, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[path]
	if n == nil {
		return safefile.Identity{}, os.ErrNotExist
	}
	return n.identity(), nil
}

func (n *inode) identity() safefile.Identity {
	return safefile.Identity{Dev: 1, Ino: n.ino, Mode: 0o100600, Nlink: 1, Size: uint64(len(n.live)), MtimeNS: n.mtime}
}

func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.op("rename"); err != nil {
		return err
	}
	d.names[to] = d.names[from]
	delete(d.names, from)
	return nil
}

func (d *disk) Exchange(a, b string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.op("exchange"); err != nil {
		return err
	}
	d.names[a], d.names[b] = d.names[b], d.names[a]
	return nil
}

func (d *disk) Remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.op("remove"); err != nil {
		return err
	}
	delete(d.names, path)
	return nil
}

func (d *disk) SyncDir(string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.op("syncdir"); err != nil {
		return err
	}
	d.durable = map[string]*inode{}
	for name, n := range d.names {
		d.durable[name] = n
	}
	return nil
}

type memFile struct {
	d *disk
	n *inode
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if off >= int64(len(f.n.live)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.live[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	partly, err := f.d.op("write")
	n := len(p)
	switch {
	case partly:
		n = len(p) / 2
	case err != nil:
		n = 0
	}
	f.n.live = append(f.n.live[:len(f.n.live):len(f.n.live)], p[:n]...)
	f.d.clock++
	f.n.mtime = f.d.clock
	return n, err
}

func (f *memFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if _, err := f.d.op("truncate"); err != nil {
		return err
	}
	f.n.live = f.n.live[:size:size]
	f.d.clock++
	f.n.mtime = f.d.clock
	return nil
}

func (f *memFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if _, err := f.d.op("sync"); err != nil {
		return err
	}
	f.d.syncs++
	f.n.durable = append([]byte{}, f.n.live...)
	return nil
}

func (f *memFile) Allocate(int64) error { return nil }

func (f *memFile) Identity() (safefile.Identity, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.n.identity(), nil
}

func (f *memFile) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.n.locked = false
	return nil
}

// Ways in which a device may treat what was never synced.
const (
	keepNone   = iota // all of it is gone
	keepAll           // all of it arrived
	keepPrefix        // it arrived up to some byte
	keepHoles         // the length arrived, and some sectors did not
	keepModes
)

const sector = 512

// restart is the disk after the machine died and came back. Names that were not
// synced are there or not.
func (d *disk) restart(mode int, rng *rand.Rand) *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := newDisk()
	after.nextIno, after.clock = d.nextIno, d.clock
	names := d.durable
	if rng.IntN(2) == 0 {
		names = d.names
	}
	for name, n := range names {
		content := n.settle(mode, rng)
		fresh := &inode{ino: n.ino, live: content, durable: append([]byte{}, content...), mtime: n.mtime}
		after.names[name], after.durable[name] = fresh, fresh
	}
	return after
}

// settle is what the device has of a file after a crash.
func (n *inode) settle(mode int, rng *rand.Rand) []byte {
	switch {
	case mode == keepAll:
		return append([]byte{}, n.live...)
	case mode == keepNone:
		return append([]byte{}, n.durable...)
	case len(n.live) <= len(n.durable): // a truncation that was not synced
		if rng.IntN(2) == 0 {
			return append([]byte{}, n.live...)
		}
		return append([]byte{}, n.durable...)
	}
	out := append([]byte{}, n.live...)
	if mode == keepPrefix {
		return out[:len(n.durable)+rng.IntN(len(n.live)-len(n.durable)+1)]
	}
	for at := len(n.durable); at < len(out); {
		end := min((at/sector+1)*sector, len(out))
		if rng.IntN(2) == 0 {
			clear(out[at:end])
		}
		at = end
	}
	return out
}

const memPath = "/state/log.jsonl"

// kept returns the content of the files that hold torn tails.
func (d *disk) kept() (out []string) {
	for name, n := range d.names {
		if ok, _ := filepath.Match(memPath+".torn-*", name); ok {
			out = append(out, string(n.live))
		}
	}
	return out
}
