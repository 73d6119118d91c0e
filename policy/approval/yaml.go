package approval

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Bounds of a policy block. A person reads it; what is larger is no policy.
const (
	maxAliases = 32
	maxDepth   = 16
	maxNodes   = 20_000
)

// A value is one node of the policy after YAML's own rules were applied: a
// scalar of the YAML 1.2 core schema, a list, or a mapping in file order.
type value struct {
	line   int
	scalar any // string, bool, float64 or nil
	list   []value
	pairs  []pair
	kind   kind
}

type kind int

const (
	isScalar kind = iota
	isList
	isMap
)

type pair struct {
	key   string
	value value
}

// parseYAML reads exactly one YAML document. What another reader of the same
// text might understand otherwise is refused: a second document, a directive, a
// tag, a duplicate key, a key that is no string, an endless or exploding alias.
func parseYAML(b block) (v value, fail *Failure) {
	defer func() {
		// A fault of the parser must make everything manual, not end the program.
		if p := recover(); p != nil {
			v, fail = value{}, &Failure{Code: CodeYAML, Detail: fmt.Sprintf("the YAML parser failed: %v", p)}
		}
	}()
	for line := range lines(b.text) {
		if strings.HasPrefix(line, "%") {
			return value{}, &Failure{Code: CodeYAML, Detail: "a YAML directive changes what the text means"}
		}
		if strings.HasPrefix(line, "\ufeff") {
			return value{}, &Failure{Code: CodeYAML, Detail: "a byte order mark inside the block"}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(b.text))
	var doc yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return value{}, &Failure{Code: CodeYAML, Line: b.line, Detail: "the block is empty"}
	}
	if err != nil {
		return value{}, &Failure{Code: CodeYAML, Detail: err.Error()}
	}
	var second yaml.Node
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		return value{}, &Failure{Code: CodeYAML, Detail: "something follows the first YAML document"}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return value{}, &Failure{Code: CodeYAML, Detail: "it is no YAML document"}
	}
	c := &converter{base: b.line - 1, text: strings.Split(b.text, "\n")}
	return c.convert(doc.Content[0], 0), c.failed
}

// A converter turns nodes into values and keeps the first fault.
type converter struct {
	base           int      // added to a node's line
	text           []string // the block's lines
	aliases, nodes int
	failed         *Failure
}

func (c *converter) fail(n *yaml.Node, detail string) value {
	if c.failed == nil {
		c.failed = &Failure{Code: CodeYAML, Line: c.base + n.Line, Detail: detail}
	}
	return value{}
}

func (c *converter) convert(n *yaml.Node, depth int) value {
	c.nodes++
	switch {
	case c.failed != nil:
		return value{}
	case depth > maxDepth:
		return c.fail(n, "nested too deeply")
	case c.nodes > maxNodes:
		return c.fail(n, "too many values, counting what aliases repeat")
	case n.Style&yaml.TaggedStyle != 0 || c.bareTag(n):
		return c.fail(n, "a YAML tag")
	}
	v := value{line: c.base + n.Line}
	switch n.Kind {
	case yaml.AliasNode:
		c.aliases++
		if c.aliases > maxAliases {
			return c.fail(n, fmt.Sprintf("more than %d aliases", maxAliases))
		}
		return c.convert(n.Alias, depth+1)
	case yaml.ScalarNode:
		return c.scalar(n, v)
	case yaml.SequenceNode:
		v.kind = isList
		for _, item := range n.Content {
			v.list = append(v.list, c.convert(item, depth+1))
		}
		return v
	case yaml.MappingNode:
		return c.mapping(n, v, depth)
	}
	return c.fail(n, "a kind of YAML node that a policy cannot hold")
}

// bareTag finds the tag "!", which the parser drops although it makes a string
// of what follows: it stands where the node begins, or after the node's anchor.
func (c *converter) bareTag(n *yaml.Node) bool {
	if n.Line < 1 || n.Line > len(c.text) || n.Column < 1 {
		return false
	}
	line := []rune(c.text[n.Line-1])
	rest := string(line[min(n.Column-1, len(line)):])
	if strings.HasPrefix(rest, "&") {
		_, rest, _ = strings.Cut(rest, " ")
		for next := n.Line; strings.TrimSpace(rest) == "" && next < len(c.text); next++ {
			rest = c.text[next]
		}
	}
	return strings.HasPrefix(strings.TrimLeft(rest, " \t"), "!")
}

func (c *converter) mapping(n *yaml.Node, v value, depth int) value {
	v.kind = isMap
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := c.convert(n.Content[i], depth+1)
		name, ok := key.scalar.(string)
		switch {
		case c.failed != nil:
			return value{}
		case key.kind != isScalar || !ok:
			return c.fail(n.Content[i], "a key that is no string; quote it")
		case seen[name]:
			return c.fail(n.Content[i], fmt.Sprintf("the key %q twice", name))
		}
		seen[name] = true
		v.pairs = append(v.pairs, pair{key: name, value: c.convert(n.Content[i+1], depth+1)})
	}
	return v
}

// The YAML 1.2 core schema of plain scalars (YAML 1.2.2 section 10.3.2). The
// parser's own idea, which is nearer to YAML 1.1, is not asked.
var (
	coreNull  = regexp.MustCompile(`^(null|Null|NULL|~|)$`)
	coreBool  = regexp.MustCompile(`^(true|True|TRUE|false|False|FALSE)$`)
	coreInt   = regexp.MustCompile(`^[-+]?[0-9]+$`)
	coreOctal = regexp.MustCompile(`^0o[0-7]+$`)
	coreHex   = regexp.MustCompile(`^0x[0-9a-fA-F]+$`)
	coreFloat = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	coreInf   = regexp.MustCompile(`^([-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN)$`)
)

func (c *converter) scalar(n *yaml.Node, v value) value {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	text := n.Value
	if strings.ContainsRune(text, 0) {
		return c.fail(n, "a NUL")
	}
	if n.Style&quoted != 0 {
		v.scalar = text
		return v
	}
	switch {
	case coreNull.MatchString(text):
		return v
	case coreBool.MatchString(text):
		v.scalar = strings.EqualFold(text, "true")
	case coreInf.MatchString(text):
		return c.fail(n, "an infinite number")
	case coreOctal.MatchString(text), coreHex.MatchString(text):
		i, err := strconv.ParseUint(text, 0, 53)
		if err != nil {
			return c.fail(n, "a number that is too large")
		}
		v.scalar = float64(i)
	case coreInt.MatchString(text), coreFloat.MatchString(text):
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return c.fail(n, "a number that is too large")
		}
		v.scalar = f
	default:
		v.scalar = text
	}
	return v
}
