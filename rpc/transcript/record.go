package transcript

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quietFor is how long a server must be silent before a recording takes it to have said
// all it has to say to a line that asks for no answer.
const quietFor = 300 * time.Millisecond

// Record plays the sending side of file against a fresh server and returns the same
// transcript with the frames that came in place of the expected ones. Comments stay.
// Values that change from run to run are written as matchers or variables: those of the
// sandbox, times (members ending in _ms or named ts that the request did not give) and
// digests that nothing sent. An expectation that still holds stays as it is written.
// With exact set, frames are kept as they came.
//
// What is recorded is what the server did, right or wrong: read it before keeping it.
func Record(file *File, options Options, exact bool) (*File, error) {
	recorded := &File{Path: file.Path}
	recording := &recorder{vars: Vars{}, sent: map[string]bool{}, refs: map[string]string{}, exact: exact}
	err := play(file, options, func(event Event) error {
		recorded.Entries = append(recorded.Entries, recording.entry(event))
		return nil
	}, recording.begin)
	return recorded, err
}

// Event is one thing that happened while a transcript was played: a line of the file
// that is not an expectation, or a frame that came (Kind Expect, or ExpectEOF when the
// server ended the stream). Text of a Send is as it was sent, Source as it was written;
// Source of a frame is the expectation in the file with its id, or "", and Holds says
// whether the frame meets it.
type Event struct {
	Kind   Kind
	Text   string
	Source string
	Holds  bool
}

// Replay plays the sending side of file and hands over everything that happens, as it
// happens, without comparing anything.
func Replay(file *File, options Options, see func(Event) error) error {
	return play(file, options, see, func(Vars) {})
}

func play(file *File, options Options, see func(Event) error, begin func(Vars)) (err error) {
	sandbox, err := NewSandbox(file, options.TempDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sandbox.Close()) }()
	begin(sandbox.Vars)
	p := &player{options: options, vars: sandbox.Vars, see: see}
	defer p.abort()
	for i, entry := range file.Entries {
		if entry.Kind == Command {
			p.old = expectations(file.Entries[i+1:])
		}
		if err := p.step(entry, file.Entries[i+1:]); err != nil {
			return fmt.Errorf("%s:%d: %w", file.Path, entry.Line, err)
		}
	}
	return p.end()
}

type player struct {
	options Options
	vars    Vars
	see     func(Event) error
	server  *server
	owed    int     // answers to come for what was sent since the last time they were taken
	old     []Entry // the file's expectations that no frame was paired with yet
	over    bool
}

func (p *player) step(entry Entry, rest []Entry) error {
	switch entry.Kind {
	case Expect, ExpectEOF:
		return p.takeOwed()
	case Send:
		text, err := p.vars.Expand(entry.Text, true)
		if err != nil {
			return err
		}
		if err := p.see(Event{Kind: Send, Text: text, Source: entry.Text}); err != nil {
			return err
		}
		if err := p.server.send(text); err != nil {
			return err
		}
		p.owed += answers(text)
		if len(rest) == 0 || rest[0].Kind == Comment || rest[0].Kind == Command {
			return p.takeOwed()
		}
		return nil
	case SendEOF:
		if err := p.see(Event{Kind: SendEOF}); err != nil {
			return err
		}
		return p.server.input.Close()
	case Command:
		return p.command(entry)
	default:
		return p.see(Event{Kind: entry.Kind, Text: entry.Text, Source: entry.Text})
	}
}

// expectations are those of one server: up to the next one's start.
func expectations(entries []Entry) []Entry {
	var out []Entry
	for _, entry := range entries {
		if entry.Kind == Command {
			break
		}
		if entry.Kind == Expect && !strings.HasPrefix(entry.Text, `"<any>"`) {
			out = append(out, entry)
		}
	}
	return out
}

// answers is how many frames a line asks for. A line that is not a request in any
// readable form is refused with one.
func answers(text string) int {
	var head struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
	}
	if strings.TrimSpace(text) == "" {
		return 0
	}
	if err := json.Unmarshal([]byte(text), &head); err == nil && head.Method != nil && head.ID == nil {
		return 0
	}
	return 1
}

func (p *player) command(entry Entry) error {
	old := p.old
	p.old = nil // they are the next server's
	if err := p.end(); err != nil {
		return err
	}
	p.old = old
	args, err := expandArgs(entry, p.vars)
	if err != nil {
		return err
	}
	if err := p.see(Event{Kind: Command, Text: "gloved " + strings.Join(args, " "), Source: entry.Text}); err != nil {
		return err
	}
	p.over = false
	p.server, err = p.options.Launcher.start(args)
	return err
}

func (p *player) takeOwed() error {
	for p.owed > 0 && !p.over {
		if err := p.take(); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) take() error {
	got, err := p.server.next(p.options.patience())
	if errors.Is(err, io.EOF) {
		p.over, p.owed = true, 0
		return p.see(Event{Kind: ExpectEOF})
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.server.stderr)
	}
	p.owed--
	return p.came(got)
}

// came hands over a frame, with the expectation in the file that it meets. The values
// that the expectation names are kept, so that a recording of it can be played on.
func (p *player) came(got []byte) error {
	event := Event{Kind: Expect, Text: string(got)}
	for i, old := range p.old {
		want, err := p.vars.Expand(old.Text, true)
		if err != nil || frameKey([]byte(want)) != frameKey(got) {
			continue
		}
		p.old = append(p.old[:i:i], p.old[i+1:]...)
		event.Source = old.Text
		differences, err := Match([]byte(want), got, p.vars)
		event.Holds = err == nil && len(differences) == 0
		if !event.Holds {
			keepNamed([]byte(want), got, p.vars)
		}
		break
	}
	return p.see(event)
}

// keepNamed learns the values of named matchers from a frame, where it has them.
func keepNamed(want, got []byte, vars Vars) {
	wantValue, wantErr := decode(want)
	gotValue, gotErr := decode(got)
	if wantErr != nil || gotErr != nil {
		return
	}
	m := matcher{kept: Vars{}}
	m.compare("", wantValue, gotValue)
	maps.Copy(vars, m.kept)
}

// end takes what the running server still says and ends it.
func (p *player) end() error {
	if p.server == nil {
		return nil
	}
	if err := p.takeOwed(); err != nil {
		return err
	}
	for !p.over {
		got, err := p.server.next(quietFor)
		if err != nil {
			break
		}
		if err := p.came(got); err != nil {
			return err
		}
	}
	ending := p.server
	p.server = nil
	extra, err := ending.finish()
	for _, text := range extra {
		if err := p.came(text); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, ending.stderr)
	}
	return nil
}

func (p *player) abort() {
	if p.server != nil {
		p.server.abort()
	}
}

// recorder turns events into entries.
type recorder struct {
	vars  Vars              // the sandbox's
	sent  map[string]bool   // every string and number that was sent
	refs  map[string]string // values that were sent by reference, and the reference
	exact bool
}

func (r *recorder) begin(vars Vars) { r.vars = maps.Clone(vars) }

func (r *recorder) entry(event Event) Entry {
	switch event.Kind {
	case Send:
		if value, err := decode([]byte(event.Text)); err == nil {
			r.remember(value)
		}
		for _, reference := range varReference.FindAllString(event.Source, -1) {
			if value, err := r.vars.Expand(reference, false); err == nil {
				r.refs[value] = reference
			}
		}
		return Entry{Kind: Send, Text: event.Source}
	case Expect:
		if event.Holds && !r.exact {
			return Entry{Kind: Expect, Text: event.Source}
		}
		return Entry{Kind: Expect, Text: r.generalize(event.Text, event.Source)}
	default:
		return Entry{Kind: event.Kind, Text: event.Source}
	}
}

func (r *recorder) remember(value any) {
	switch value := value.(type) {
	case string:
		r.sent[value] = true
	case number:
		r.sent[string(value)] = true
	case []any:
		for _, element := range value {
			r.remember(element)
		}
	case map[string]any:
		for _, member := range value {
			r.remember(member)
		}
	}
}

// generalize writes a frame as an expectation. Matchers with a name stay where the old
// expectation had them, because later lines use what they keep.
func (r *recorder) generalize(text, old string) string {
	if r.exact {
		return text
	}
	value, err := decode([]byte(text))
	if err != nil {
		return text
	}
	var former any
	if expanded, err := r.vars.Expand(old, true); err == nil {
		former, _ = decode([]byte(expanded)) // without one there is nothing to keep
	}
	return unquoteReferences(render(r.general("", value, former)))
}

// bareMark encloses a variable reference that stands for a number: it is rendered as a
// string, because JSON has no other place for it, and loses its quotes afterwards.
const bareMark = "\uE000"

func unquoteReferences(text string) string {
	return strings.NewReplacer(`"`+bareMark, "", bareMark+`"`, "").Replace(text)
}

func (r *recorder) general(name string, value, old any) any {
	if text, ok := old.(string); ok {
		parts := matcherForm.FindStringSubmatch(text)
		if parts != nil && parts[1] != "" && kindHolds(parts[2], value) {
			return text
		}
	}
	switch value := value.(type) {
	case map[string]any:
		former, _ := old.(map[string]any)
		out := make(map[string]any, len(value))
		for _, member := range slices.Sorted(maps.Keys(value)) {
			out[member] = r.general(member, value[member], former[member])
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i := range value {
			out[i] = r.general(name, value[i], nil)
		}
		return out
	case number:
		if reference, ok := r.refs[string(value)]; ok {
			return bareMark + reference + bareMark
		}
		if isTimeMember(name) && !r.sent[string(value)] && plausibleMillis(value) {
			return "<time>"
		}
		return value
	case string:
		return r.generalString(name, value)
	}
	return value
}

func (r *recorder) generalString(name, value string) any {
	if reference, ok := r.refs[value]; ok {
		return reference
	}
	for _, variable := range slices.Sorted(maps.Keys(r.vars)) {
		if r.vars[variable] == value {
			return "${" + variable + "}"
		}
	}
	if r.sent[value] {
		return value
	}
	switch {
	case isHex64(value) && strings.Trim(value, "0") != "":
		return "<hex64>"
	case isTimeMember(name) && kindHolds("time", value):
		return "<time>"
	case name == "version" && strings.Count(value, ".") > 0:
		return "<string>"
	}
	return value
}

func isTimeMember(name string) bool {
	return strings.HasSuffix(name, "_ms") || name == "ts"
}

// FromRequests makes a transcript that sends each line of requests to a gloved started
// with args, ready for Record. Blank lines and lines beginning with "#" are comments.
func FromRequests(path string, args []string, requests []byte) (*File, error) {
	var text strings.Builder
	text.WriteString("$ gloved " + strings.Join(args, " ") + "\n")
	for line := range strings.Lines(string(requests)) {
		line = strings.TrimRight(line, "\r\n")
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "#") {
			text.WriteString(line + "\n")
			continue
		}
		if strings.HasPrefix(line, "-->") || strings.HasPrefix(line, "<--") || strings.HasPrefix(line, "$ ") {
			return nil, errors.New("that is already a transcript: record it with its own name")
		}
		text.WriteString("--> " + line + "\n")
		text.WriteString("<-- " + strconv.Quote("<any>") + "\n")
	}
	return Parse(path, []byte(text.String()))
}
