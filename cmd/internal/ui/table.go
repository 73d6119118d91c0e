package ui

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table lays out rows in columns as wide as their widest cell, two spaces apart. Cells
// may hold several lines.
type Table struct {
	Head []string
	rows [][]cell
}

type cell struct {
	text  string
	style Style
}

// Row adds a row of plain cells.
func (t *Table) Row(cells ...string) {
	row := make([]cell, len(cells))
	for i, text := range cells {
		row[i] = cell{text: Printable(text)}
	}
	t.rows = append(t.rows, row)
}

// Paint styles one cell of the last row.
func (t *Table) Paint(column int, style Style) {
	if len(t.rows) > 0 && column < len(t.rows[len(t.rows)-1]) {
		t.rows[len(t.rows)-1][column].style = style
	}
}

// Write prints the table, indented, with colour where it is on.
func (t *Table) Write(out io.Writer, indent string, color bool) {
	all := t.rows
	if len(t.Head) > 0 {
		head := make([]cell, len(t.Head))
		for i, text := range t.Head {
			head[i] = cell{text: text, style: Bold}
		}
		all = append([][]cell{head}, all...)
	}
	widths := columnWidths(all)
	var text strings.Builder
	for _, row := range all {
		writeRow(&text, row, widths, indent, color)
	}
	_, _ = io.WriteString(out, text.String())
}

func columnWidths(rows [][]cell) []int {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			for _, line := range strings.Split(c.text, "\n") {
				widths[i] = max(widths[i], utf8.RuneCountInString(line))
			}
		}
	}
	return widths
}

func writeRow(out *strings.Builder, row []cell, widths []int, indent string, color bool) {
	height := 1
	for _, c := range row {
		height = max(height, strings.Count(c.text, "\n")+1)
	}
	for line := range height {
		var text strings.Builder
		text.WriteString(indent)
		for i, c := range row {
			part := ""
			if lines := strings.Split(c.text, "\n"); line < len(lines) {
				part = lines[line]
			}
			text.WriteString(Paint(color, c.style, part))
			if i < len(row)-1 {
				text.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(part)+2))
			}
		}
		out.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
}
