package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"gloved.dev/rpc"
)

// candidate is one way to complete the word before the cursor: what replaces the whole
// word, what is shown, and what is said of it.
type candidate struct {
	value, display, about string
}

// completer knows the server's methods from rpc.discover.
type completer struct {
	methods  []rpc.MethodDescription
	commands []replCommand
}

// complete offers ways to go on after line, which ends at the cursor.
func (c *completer) complete(line string) []candidate {
	word := line[strings.LastIndexAny(line, " \t\n")+1:]
	trimmed := strings.TrimLeft(line, " \t")
	name, rest, hasRest := strings.Cut(trimmed, " ")
	switch {
	case strings.HasPrefix(trimmed, ":") && !hasRest:
		return c.commandNames(word)
	case !hasRest:
		return c.methodNames(word)
	case strings.HasPrefix(name, ":"):
		if i := slices.IndexFunc(c.commands, func(r replCommand) bool { return r.name == name }); i >= 0 && c.commands[i].takesMethod {
			return c.methodNames(word)
		}
		return nil
	}
	method, ok := c.method(name)
	if !ok {
		return nil
	}
	if strings.HasPrefix(strings.TrimLeft(rest, " \t"), "{") {
		return c.jsonMembers(method, rest, word)
	}
	return pairMembers(method, rest, word)
}

func (c *completer) method(name string) (rpc.MethodDescription, bool) {
	for _, method := range c.methods {
		if method.Name == name {
			return method, true
		}
	}
	return rpc.MethodDescription{}, false
}

func (c *completer) commandNames(word string) []candidate {
	var out []candidate
	for _, command := range c.commands {
		if strings.HasPrefix(command.name, word) {
			out = append(out, candidate{value: command.name, display: command.name, about: command.about})
		}
	}
	return out
}

func (c *completer) methodNames(word string) []candidate {
	var out []candidate
	for _, method := range c.methods {
		if strings.HasPrefix(method.Name, word) {
			out = append(out, candidate{value: method.Name, display: method.Name, about: method.Summary})
		}
	}
	return out
}

// pairMembers completes name= after a method, leaving out members that are there.
func pairMembers(method rpc.MethodDescription, rest, word string) []candidate {
	if strings.Contains(word, "=") {
		return nil
	}
	var out []candidate
	for _, param := range method.Params {
		if strings.HasPrefix(param.Name, word) && !strings.Contains(" "+rest, " "+param.Name+"=") {
			out = append(out, candidate{value: param.Name + "=", display: param.Name, about: describeParam(param)})
		}
	}
	return out
}

func describeParam(param rpc.ContentDescriptor) string {
	parts := []string{schemaType(param.Schema)}
	if !param.Required {
		parts = append(parts, "optional")
	}
	if param.Summary != "" {
		parts = append(parts, param.Summary)
	}
	return strings.Join(parts, ", ")
}

func schemaType(schema *jsonschema.Schema) string {
	switch {
	case schema == nil:
		return "any"
	case schema.Type != "":
		return schema.Type
	case len(schema.Types) > 0:
		return strings.Join(schema.Types, " or ")
	}
	return "any"
}

// jsonMembers completes a member name inside a JSON object that is being typed.
func (c *completer) jsonMembers(method rpc.MethodDescription, text, word string) []candidate {
	place := scanJSON(text)
	if !place.name {
		return nil
	}
	partial := place.partial
	if partial != "" && !strings.HasSuffix(word, partial) {
		return nil // the name holds a blank: it is none of ours
	}
	stem := strings.TrimSuffix(word, partial)
	var out []candidate
	for _, member := range membersAt(method, place.path) {
		quoted := `"` + member.name + `":`
		if strings.HasPrefix(quoted, partial) && !slices.Contains(place.seen, member.name) {
			out = append(out, candidate{value: stem + quoted, display: member.name, about: member.about})
		}
	}
	return out
}

type member struct{ name, about string }

// membersAt are the members of the object at path within a method's parameters.
func membersAt(method rpc.MethodDescription, path []string) []member {
	if len(path) == 0 {
		out := make([]member, len(method.Params))
		for i, param := range method.Params {
			out[i] = member{param.Name, describeParam(param)}
		}
		return out
	}
	var schema *jsonschema.Schema
	for _, param := range method.Params {
		if param.Name == path[0] {
			schema = param.Schema
		}
	}
	for _, name := range path[1:] {
		if schema == nil {
			return nil
		}
		schema = schema.Properties[name]
	}
	return schemaMembers(schema)
}

// schemaMembers are the members of an object's schema.
func schemaMembers(schema *jsonschema.Schema) []member {
	if schema == nil {
		return nil
	}
	var out []member
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		out = append(out, member{name, strings.TrimSuffix(schemaType(property)+", "+property.Description, ", ")})
	}
	return out
}

// jsonPlace is where in unfinished JSON its end is.
type jsonPlace struct {
	path    []string // names of the objects around the end, outermost first
	name    bool     // a member name is due, or is being typed
	partial string   // what of it is typed, with its opening quote
	seen    []string // names the innermost object has already
}

// scanJSON follows the text to its end. It accepts anything: what is typed is not JSON yet.
func scanJSON(text string) jsonPlace {
	type level struct {
		object bool
		wants  bool // a name is due
		name   string
		seen   []string
	}
	var stack []level
	for i := 0; i < len(text); i++ {
		top := len(stack) - 1
		switch text[i] {
		case '{':
			stack = append(stack, level{object: true, wants: true})
		case '[':
			stack = append(stack, level{})
		case '}', ']':
			if top >= 0 {
				stack = stack[:top]
			}
		case ',':
			if top >= 0 && stack[top].object {
				stack[top].wants = true
			}
		case '"':
			end := stringEnd(text, i)
			isName := top >= 0 && stack[top].object && stack[top].wants
			if end < 0 {
				place := jsonPlace{name: isName, partial: text[i:]}
				for _, l := range stack[:max(top, 0)] {
					place.path = append(place.path, l.name)
				}
				if isName {
					place.seen = stack[top].seen
				}
				return place
			}
			if isName {
				name := text[i+1 : end]
				stack[top].name, stack[top].wants = name, false
				stack[top].seen = append(stack[top].seen, name)
			}
			i = end
		}
	}
	var place jsonPlace
	if top := len(stack) - 1; top >= 0 {
		place.name, place.seen = stack[top].object && stack[top].wants, stack[top].seen
		for _, l := range stack[:top] {
			place.path = append(place.path, l.name)
		}
	}
	return place
}

// stringEnd is the index of the quote that ends the string beginning at start, or -1.
func stringEnd(text string, start int) int {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
