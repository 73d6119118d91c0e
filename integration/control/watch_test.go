package control

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"
)

// watched follows what a process says until it has said a word, and to its end.
type watched struct {
	found chan bool   // true when the word came, false when the stream ended without it
	rest  chan string // everything, once the stream has ended
	word  string
}

func watch(from io.Reader, word string) *watched {
	w := &watched{found: make(chan bool, 1), rest: make(chan string, 1), word: word}
	go func() {
		var all strings.Builder
		told := false
		reader := bufio.NewReader(from)
		for {
			line, err := reader.ReadString('\n')
			all.WriteString(line)
			if !told && strings.Contains(line, word) {
				told = true
				w.found <- true
			}
			if err != nil {
				break
			}
		}
		if !told {
			w.found <- false
		}
		w.rest <- all.String()
	}()
	return w
}

func (w *watched) wait(t *testing.T) {
	t.Helper()
	select {
	case ok := <-w.found:
		if !ok {
			t.Fatalf("it ended without saying %q:\n%s", w.word, <-w.rest)
		}
	case <-time.After(time.Minute):
		t.Fatalf("it did not say %q in time", w.word)
	}
}
