package workspace

import (
	"os"
	"sync"

	"gloved.dev/internal/pathwalk"
)

// Pinned is a regular file or a directory, held by a descriptor (O_PATH on
// Linux) since it was found, so that its identity cannot be reused meanwhile.
type Pinned struct {
	path string
	id   pathwalk.Identity
	mu   sync.Mutex
	file *os.File
}

// OpenPinned walks path from "/" without following any link and holds what it
// finds.
func OpenPinned(path string) (*Pinned, error) {
	f, id, err := pathwalk.Open(path)
	if err != nil {
		code := pathwalk.Code(err)
		if code == "" {
			code = CodeIO
		}
		return nil, &Error{Code: code, Err: err}
	}
	return &Pinned{path: path, id: id, file: f}, nil
}

// Verify walks the path again and compares: same object, same mode, same
// owner. Anything else, a failure of the walk included, is CodeIdentity. It
// does not compare what is inside.
func (p *Pinned) Verify() error {
	p.mu.Lock()
	closed := p.file == nil
	p.mu.Unlock()
	if closed {
		return &Error{Code: CodeClosed}
	}
	id, err := pathwalk.Identify(p.path)
	if err != nil || id != p.id {
		return &Error{Code: CodeIdentity, Err: err}
	}
	return nil
}

// Identity is what was found.
func (p *Pinned) Identity() pathwalk.Identity { return p.id }

// IsDir says whether it is a directory.
func (p *Pinned) IsDir() bool { return p.id.IsDir() }

// File is the descriptor, for open_tree and the like; nil after Close. The
// Pinned keeps owning it.
func (p *Pinned) File() *os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.file
}

// Close lets go. Closing twice is harmless.
func (p *Pinned) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		return nil
	}
	err := p.file.Close()
	p.file = nil
	return err
}
