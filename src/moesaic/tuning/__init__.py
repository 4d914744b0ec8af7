"""Choosing by size: one layer serves every number of rows, each by the form that suits it (docs/tuning.md).

>>> from moesaic import HopperGrouped, known_machine
>>> from moesaic.models import known_model
>>> from moesaic.tuning import Always, CostModel, Product, choose
>>> problem = known_model("mixtral-8x7b").problem
>>> choose(problem, known_machine("h200"), num_rows=4096)
Product(gather=False, group=8, blocks=0)
>>> always_products, never_products = HopperGrouped(Always(Product())), HopperGrouped(CostModel(products=False))
"""

from moesaic.tuning.budget import Budget as Budget
from moesaic.tuning.candidates import candidates as candidates
from moesaic.tuning.choices import FORMS as FORMS
from moesaic.tuning.choices import Choice as Choice
from moesaic.tuning.choices import Product as Product
from moesaic.tuning.choices import Streamed as Streamed
from moesaic.tuning.choices import Vector as Vector
from moesaic.tuning.choices import read_choice as read_choice
from moesaic.tuning.choosing import Always as Always
from moesaic.tuning.choosing import Choosing as Choosing
from moesaic.tuning.choosing import CostModel as CostModel
from moesaic.tuning.choosing import Task as Task
from moesaic.tuning.cost_model import choose as choose
from moesaic.tuning.origin import Origin as Origin
from moesaic.tuning.search import Bench as Bench
from moesaic.tuning.search import Fastest as Fastest
from moesaic.tuning.search import fastest as fastest
from moesaic.tuning.table import Entry as Entry
from moesaic.tuning.table import Table as Table
from moesaic.tuning.table_files import Found as Found
from moesaic.tuning.table_files import TableFiles as TableFiles
from moesaic.tuning.table_files import write_table as write_table
from moesaic.tuning.table_text import read_table as read_table
from moesaic.tuning.table_text import written as written
from moesaic.tuning.tuned import Tuned as Tuned
