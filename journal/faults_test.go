package journal_test

import (
	"runtime"
	"sync/atomic"

	"gloved.dev/journal"
)

// gateFS holds syncs at a gate while armed, so that a test can look at the
// journal in the middle of one.
type gateFS struct {
	journal.FS
	armed atomic.Bool
	enter chan struct{}
	leave chan struct{}
	syncs atomic.Int64
}

type gateFile struct {
	journal.File
	fs *gateFS
}

func (g *gateFS) Open(path string) (journal.File, error) {
	f, err := g.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return gateFile{f, g}, nil
}

func (g *gateFS) Create(path string) (journal.File, error) {
	f, err := g.FS.Create(path)
	if err != nil {
		return nil, err
	}
	return gateFile{f, g}, nil
}

func (g gateFile) Sync() error {
	if g.fs.armed.Load() {
		g.fs.enter <- struct{}{}
		<-g.fs.leave
		g.fs.syncs.Add(1)
	} else if g.fs.syncs.Load() > 0 {
		g.fs.syncs.Add(1)
	}
	return g.File.Sync()
}

// waitQueued yields until n appends wait for the writer.
func waitQueued(j *journal.Journal, n int) {
	for journal.Queued(j) < n {
		runtime.Gosched()
	}
}
