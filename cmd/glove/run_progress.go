package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc/wire"
)

const (
	// progressAfter is how long copying may take before anything is shown.
	progressAfter = 400 * time.Millisecond
	// progressWidth is the bar's, in characters.
	progressWidth = 24
)

// progressBar shows how much was copied, on a terminal and only when it takes a while.
type progressBar struct {
	streams *ui.Streams
	total   uint64
	since   time.Time

	mu    sync.Mutex
	shown bool
	over  bool
}

// progress begins to show the session's copying.
func (r *runner) progress() *progressBar {
	bytes, _ := r.job.Copied()
	bar := &progressBar{streams: r.Streams, total: bytes, since: time.Now(), over: r.flags.quiet || r.flags.asJSON || !r.ErrTerm || bytes == 0}
	r.feed.OnProgress = bar.show
	return bar
}

func (b *progressBar) show(p wire.SessionProgressParams) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || time.Since(b.since) < progressAfter {
		return
	}
	b.shown = true
	done := min(uint64(max(p.Bytes, 0)), b.total)
	filled := int(done * progressWidth / b.total)
	bar := ui.Paint(b.streams.ErrColor, ui.Cyan, strings.Repeat("━", filled)) +
		ui.Paint(b.streams.ErrColor, ui.Dim, strings.Repeat("─", progressWidth-filled))
	fmt.Fprintf(b.streams.Err, "\r\x1b[Kcopying %s %3d%%  %s of %s, %d files", bar, done*100/b.total,
		localrun.Bytes(done), localrun.Bytes(b.total), p.Entries)
}

// done takes the bar away.
func (b *progressBar) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown && !b.over {
		fmt.Fprint(b.streams.Err, "\r\x1b[K")
	}
	b.over = true
}
